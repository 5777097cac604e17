//! Two well-known counterexamples, step by step. The search finds their shortest paths, and prints them in a readable
//! form.

use pmnet_model::check::check;
use pmnet_model::{Rule, Rules, catalogue};

fn steps(rule: Rule) -> Vec<String> {
    let configuration = catalogue::named(rule.configuration()).unwrap();
    let outcome = check(&configuration, Rules::without(rule), 1);
    outcome.counterexample.unwrap().steps
}

#[test]
fn acknowledged_by_the_head_alone() {
    let expected = [
        "call: client 1's write (seq 1, value a1)",
        "D1 gets client 1's write (seq 1, value a1)",
        "D1: order 1 is durable",
        "client 1 gets ack(seq 1, copies 2)",
        "epoch 2: chain D2, server: the server",
    ];
    assert_eq!(steps(Rule::AckWhenAllHold), expected);
}

#[test]
fn an_update_behind_a_lost_one() {
    let expected = [
        "call: client 1's write (seq 1, value a1)",
        "call: client 1's write (seq 2, value a2)",
        "D1 gets client 1's write (seq 2, value a2)",
        "D1: order 1 is durable",
        "client 1 gets ack(seq 2, copies 1)",
    ];
    assert_eq!(steps(Rule::SessionOrder), expected);
}
