//! RETRANS: asks the previous hop to fill a gap.
//!
//! ```text
//!          24    32    40      48     56    64
//! Retrans  |     |     | first | last |     |    |
//! ```

use super::view;

view! {
    /// Asks for the orders `first ..= last`.
    Retrans = Retrans {
        /// First missing order.
        first: order,
        /// Last missing order.
        last: request,
    }
}
