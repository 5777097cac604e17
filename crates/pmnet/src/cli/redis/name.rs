//! The name under which a front opens its sessions (`docs/spec/protocol.md` §4).
//!
//! By this name a device recognises a front that was restarted, and ends the sessions of the front before the restart.
//! So no two running fronts may have the same name. The name is derived from the listen address, the number of the
//! network namespace, and the id of the machine's boot. The name is unique for two reasons: the kernel lets only one
//! process listen at an address of a namespace, and during one boot no two existing namespaces have the same number.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::SocketAddr;

use pmnet_client::Clock;

use crate::cli::names::here;

/// Returns the name of a front that listens at this address, and the number of this start. Returns zeros if the front
/// cannot have a name.
pub fn name(listen: SocketAddr) -> (u64, u64) {
    let Some((boot, network)) = here().filter(|_| listen.port() != 0) else {
        return (0, 0);
    };
    let mut hasher = DefaultHasher::new();
    (boot, network, listen).hash(&mut hasher);
    // This clock also advances while the machine sleeps. The clock begins at zero at each boot, but the name then also
    // changes.
    (hasher.finish().max(1), Clock::boottime().now().0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_front_that_is_started_again_has_its_name_and_a_higher_number_and_others_have_others() {
        let at = |text: &str| name(text.parse().unwrap());
        let (first, again) = (at("127.0.0.1:6380"), at("127.0.0.1:6380"));
        assert_eq!(first.0, again.0);
        assert!(first.1 < again.1);
        for other in ["127.0.0.1:6381", "127.0.0.2:6380", "0.0.0.0:6380"] {
            assert_ne!(at(other).0, first.0, "{other}");
        }
        assert_eq!(at("127.0.0.1:0"), (0, 0));
    }
}
