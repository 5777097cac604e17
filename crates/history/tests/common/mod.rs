//! Short names for operations on the key `k`.
#![allow(dead_code, reason = "every test uses some of them")]

use pmnet_history::{Action, Operation};

pub fn operation(client: u64, invoked: u64, returned: u64, action: Action) -> Operation {
    Operation {
        client,
        key: "k".into(),
        action,
        invoked,
        returned: Some(returned),
    }
}

pub fn set(client: u64, invoked: u64, returned: u64, value: &str) -> Operation {
    operation(client, invoked, returned, Action::Set(value.into()))
}

pub fn get(client: u64, invoked: u64, returned: u64, value: Option<&str>) -> Operation {
    let value = value.map(Into::into);
    operation(client, invoked, returned, Action::Get(value))
}

pub fn incr(client: u64, invoked: u64, returned: u64, reply: i64) -> Operation {
    operation(client, invoked, returned, Action::Incr(reply))
}

pub fn lock(client: u64, invoked: u64, returned: u64, token: &str, taken: bool) -> Operation {
    let token = token.into();
    operation(client, invoked, returned, Action::Lock { token, taken })
}

pub fn release(client: u64, invoked: u64, returned: u64, token: &str, released: bool) -> Operation {
    let token = token.into();
    operation(
        client,
        invoked,
        returned,
        Action::Release { token, released },
    )
}

/// Returns the operation without its answer.
pub fn never(operation: Operation) -> Operation {
    Operation {
        returned: None,
        ..operation
    }
}
