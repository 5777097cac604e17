//! Single commands and their edge cases.
