//! Steps as text, for counterexamples.

use crate::adversary::Trick;
use crate::configuration::{Call, DEVICES};
use crate::history::{Answer, BEGUN, SET, perform, seen};
use crate::network::{Node, Packet};
use crate::protocol::{Action, Protocol};
use crate::state::{Op, State, TORN, step_of};

const STORES: [&str; 2] = ["the first store", "the second store"];

fn node(node: Node) -> String {
    match node {
        Node::Client(id) => format!("client {}", id + 1),
        Node::Device(id) => format!("D{}", id + 1),
        Node::Server(0) => "the server".to_owned(),
        Node::Server(_) => "the replica".to_owned(),
    }
}

fn step(model: &Protocol, client: u8, index: u8) -> String {
    let step = model.step(client, index);
    let who = client + 1;
    match step.call {
        Call::Open => format!("client {who}'s OPEN"),
        Call::End => format!("client {who}'s END"),
        Call::Write => format!(
            "client {who}'s write (seq {}, value {})",
            step.seq,
            value(client, index)
        ),
        Call::Expire => format!("the END of client {who}'s session by the head"),
        Call::WriteOther => format!(
            "client {who}'s write of the other key (seq {}, value {})",
            step.seq,
            value(client, index)
        ),
        Call::WriteBoth => format!(
            "client {who}'s write of both keys (seq {}, value {})",
            step.seq,
            value(client, index)
        ),
        Call::Read => format!("client {who}'s read (behind seq {})", step.seq),
        Call::ReadOther => {
            format!(
                "client {who}'s read of the other key (behind seq {})",
                step.seq
            )
        }
        Call::ReadBoth => format!("client {who}'s read of both keys (behind seq {})", step.seq),
        Call::ReadBypass => format!("client {who}'s read by a bypass (behind seq {})", step.seq),
        Call::Script => format!(
            "client {who}'s script: the other key is {} if the key is unset (behind seq {})",
            value(client, index),
            step.seq
        ),
        Call::Fence => format!("client {who}'s fence"),
        Call::OpenMark => format!("client {who}'s mark (OPEN)"),
        Call::EndMark => format!("client {who}'s mark (END)"),
        Call::ExpireMark => format!("the END of client {who}'s mark by the head"),
        Call::ReadOwn => format!("client {who}'s read of the update that it has just called"),
        Call::ScriptDirect => format!(
            "the barrier of client {who}'s own script: the other key is {} if the key is unset",
            value(client, index)
        ),
        Call::ReadDirect => format!("the barrier of client {who}'s own read"),
        Call::SetDirect => format!(
            "the barrier of client {who}'s own set (value {})",
            value(client, index)
        ),
        Call::Confirm => format!("client {who}'s second barrier"),
        Call::WriteIfNone if step.logged => {
            format!(
                "client {who}'s write-if-none (seq {}, value {})",
                step.seq,
                value(client, index)
            )
        }
        Call::Set => format!(
            "client {who}'s set (behind seq {}, value {})",
            step.seq,
            value(client, index)
        ),
        Call::SetOther => format!(
            "client {who}'s set of the other key (behind seq {}, value {})",
            step.seq,
            value(client, index)
        ),
        Call::WriteIfNone => format!(
            "client {who}'s write-if-none (behind seq {}, value {})",
            step.seq,
            value(client, index)
        ),
    }
}

fn value(client: u8, index: u8) -> String {
    format!("{}{}", if client == 0 { 'a' } else { 'b' }, index + 1)
}

fn entry(model: &Protocol, op: Op) -> String {
    let (client, index) = step_of(op);
    let torn = if op & TORN == 0 {
        ""
    } else {
        "the torn copy of "
    };
    format!("{torn}{}", step(model, client, index))
}

fn answer(model: &Protocol, client: u8, index: u8, answer: Answer) -> String {
    let call = model.step(client, index).call;
    if matches!(
        call,
        Call::WriteIfNone | Call::Set | Call::SetOther | Call::Script
    ) {
        let said = match answer {
            SET => "set",
            BEGUN => "begun, and nobody knows",
            _ => "was set before",
        };
        return said.to_owned();
    }
    if call.is_barrier() {
        return STORES[usize::from(answer - 1)].to_owned();
    }
    read(model, client, index, answer)
}

fn read(model: &Protocol, client: u8, index: u8, answer: Answer) -> String {
    let keys = model.step(client, index).keys;
    let values: Vec<_> = seen(keys, answer)
        .into_iter()
        .map(|op| match op {
            0 => "no value".to_owned(),
            op => {
                let (client, index) = step_of(op);
                format!("value {}", value(client, index))
            }
        })
        .collect();
    values.join(" and ")
}

fn fetched(model: &Protocol, state: &State, client: u8, index: u8, store: u8) -> String {
    let mut values = state.servers[usize::from(store)].store.values;
    let said = perform(&model.step(client, index), 0, &mut values);
    format!(
        "{} reads {}",
        step(model, client, index),
        read(model, client, index, said)
    )
}

fn packet(model: &Protocol, packet: Packet) -> String {
    match packet {
        Packet::Update { client, index } | Packet::Bypass { client, index } => {
            step(model, client, index)
        }
        Packet::Fallback { client, index } => format!("{} as fallback", step(model, client, index)),
        Packet::Append {
            epoch, order, op, ..
        } => {
            format!("append(epoch {epoch}, order {order}: {})", entry(model, op))
        }
        Packet::Durable { epoch, order } => format!("durable(epoch {epoch}, up to {order})"),
        Packet::Ack {
            mark, seq, copies, ..
        } => {
            let of = if mark { "of the mark, " } else { "" };
            format!("ack({of}seq {seq}, copies {copies})")
        }
        Packet::Stamped {
            epoch,
            client,
            index,
            barrier,
            fallback,
            ..
        } => format!(
            "{}{}, stamped (epoch {epoch}, barrier {barrier})",
            step(model, client, index),
            if fallback { " as fallback" } else { "" }
        ),
        Packet::Response {
            client,
            index,
            answer: said,
            ..
        } => format!(
            "the answer to {}: {}",
            step(model, client, index),
            answer(model, client, index, said)
        ),
        Packet::Passing {
            client,
            index,
            answer: said,
            watermark,
            ..
        } => format!(
            "the server's answer to {}: {}, at watermark {watermark}",
            step(model, client, index),
            answer(model, client, index, said)
        ),
        Packet::Hit {
            client,
            index,
            answer: said,
        } => format!(
            "HIT for {}: {}",
            step(model, client, index),
            answer(model, client, index, said)
        ),
        Packet::Miss { epoch, need, .. } if !model.configuration.at_once => {
            format!("MISS(epoch {epoch}, need {need})")
        }
        Packet::Miss {
            epoch, same, need, ..
        } => {
            let version = if same { "the same" } else { "another" };
            format!("MISS(epoch {epoch}, {version} version, need {need})")
        }
        Packet::Apart { epoch, need, .. } => {
            format!("MISS(epoch {epoch}, need {need}) for a replica")
        }
        Packet::Applied { epoch, order } => format!("applied(epoch {epoch}, up to {order})"),
        Packet::Reply {
            epoch,
            applied,
            table: [first, second, marks @ ..],
            ..
        } => {
            let open = match marks.into_iter().filter(|seq| *seq == 1).count() {
                0 => String::new(),
                open => format!(", {open} open marks"),
            };
            format!(
                "recover-reply(epoch {epoch}, A {applied}, last seqs {first} and {second}{open})"
            )
        }
        Packet::NotLogged { client, index } => {
            format!("not-logged({})", step(model, client, index))
        }
        Packet::Confirm {
            epoch,
            client,
            index,
            ..
        } => {
            format!(
                "confirmation(epoch {epoch}) of {}",
                step(model, client, index)
            )
        }
        Packet::Confirmed { client, index } => {
            format!("confirmation of {}", step(model, client, index))
        }
    }
}

/// Returns a step as text, in one line.
#[must_use]
pub fn describe(model: &Protocol, state: &State, action: Action) -> String {
    let device = |id: u8| &state.devices[usize::from(id)];
    match action {
        Action::Invoke(client) => {
            let index = state.clients[usize::from(client)].invoked;
            format!("call: {}", step(model, client, index))
        }
        Action::GiveUp(client) => format!("client {} stops waiting for its call", client + 1),
        Action::Deliver(it, to) => format!("{} gets {}", node(to), packet(model, it)),
        Action::Forge(trick, it, to) => {
            let how = match trick {
                Trick::Redirect => String::new(),
                Trick::Payload => " with another payload".to_owned(),
                Trick::Epoch(epoch) => format!(", presented in epoch {epoch}"),
                Trick::Make => ", made without a key".to_owned(),
                Trick::Stolen => " with another payload, sealed with the old key".to_owned(),
            };
            format!(
                "the adversary hands {} to {}{how}",
                packet(model, it),
                node(to)
            )
        }
        Action::Persist(id) => {
            format!("D{}: order {} is durable", id + 1, device(id).durable + 1)
        }
        Action::Crash(id) => {
            let lost = device(id).last - device(id).durable;
            format!(
                "D{} crashes and restarts ({lost} entries were not durable)",
                id + 1
            )
        }
        Action::Answer(id) => format!("D{} asks the server, which answers", id + 1),
        Action::Change => {
            let epoch = state.record.epoch + 1;
            let names: Vec<_> = model
                .chain(epoch)
                .members()
                .iter()
                .map(|id| format!("D{}", id + 1))
                .collect();
            let server = node(Node::Server(model.primary(epoch)));
            format!("epoch {epoch}: chain {}, server: {server}", names.join(" "))
        }
        Action::ServerFollows => "the server persists the new epoch".to_owned(),
        Action::Replicate => "the replica gets the primary's state".to_owned(),
        Action::Finish => "the server writes A and the session table".to_owned(),
        Action::ServerCrash => "the server crashes and restarts".to_owned(),
        Action::StoreFails(it, to) => format!(
            "{} gets {}, and the store fails behind its effect",
            node(Node::Server(to)),
            packet(model, it)
        ),
        Action::Late(client, index) => format!(
            "the store executes {}, of a connection that was given up",
            step(model, client, index)
        ),
        Action::Direct(client, store) if model.reads() => format!(
            "client {}'s own operation is on its way to {}",
            client + 1,
            STORES[usize::from(store)]
        ),
        Action::Direct(client, store) => format!(
            "client {}'s own operation gets to {}, which answers",
            client + 1,
            STORES[usize::from(store)]
        ),
        Action::Fetch(it, store) => {
            let Packet::Miss { client, index, .. } = it else {
                return String::new();
            };
            let said = fetched(model, state, client, index, store);
            format!(
                "{said} from {}, as {} allows",
                STORES[usize::from(store)],
                packet(model, it)
            )
        }
        Action::FetchApart(it, store) => {
            let Packet::Apart { client, index, .. } = it else {
                return String::new();
            };
            let said = fetched(model, state, client, index, store);
            let of = ["the first store", "the replica"][usize::from(store)];
            format!("{said} from {of}, as {} allows", packet(model, it))
        }
        Action::GoAhead(client, store) => {
            let Some(index) = model.bypass_under_way(state, client) else {
                return String::new();
            };
            format!(
                "{} from {}, before the head has answered",
                fetched(model, state, client, index, store),
                STORES[usize::from(store)]
            )
        }
        Action::UseAhead(it) => format!("{} allows what was read before it", packet(model, it)),
        Action::Pass(client, store) => format!(
            "client {}'s own operation gets to {}",
            client + 1,
            STORES[usize::from(store)]
        ),
        Action::Close(client) => format!("the store closes client {}'s connection", client + 1),
        Action::Refuse(index) => format!("the head has no room for {}", step(model, 0, index)),
        Action::Rekey(at) => {
            let who = match usize::from(at) {
                DEVICES => "the server".to_owned(),
                _ => format!("D{}", at + 1),
            };
            let now = match state.keys.files[usize::from(at)] {
                0 => "accepts the new key, too",
                1 => "sends under the new key",
                _ => "forgets the old key",
            };
            format!("{who} {now}")
        }
        Action::NewFront(client) => {
            format!(
                "client {} gets a key that follows from the new one",
                client + 1
            )
        }
        Action::Forget => {
            "the server restarts and forgets which incarnation it has answered".to_owned()
        }
        Action::LeaseOver => "the lease of the removed head runs out".to_owned(),
        Action::Renew(id) => format!("D{} gets a lease, or renews it", id + 1),
        Action::Silent(id) => format!("D{}'s lease is over by its own clock", id + 1),
        Action::Lapse(id) => format!("D{}'s lease is gone from the lease store", id + 1),
        Action::Declare(id) => format!("the controller declares D{} stopped", id + 1),
    }
}
