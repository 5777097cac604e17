//! Starts the set-ups of the demo together.

use std::path::Path;

use super::plan::{Plan, Stack};
use super::view::View;
use crate::harness::Binaries;
use crate::setup::{Running, sweep};

/// Starts all stacks of the plan. Set-ups over links are optional. If one such set-up cannot be
/// started on this machine, all set-ups over links are removed from the plan, and a note gives the
/// reason.
pub fn start_all(
    plan: &mut Plan,
    binaries: &Binaries,
    out: &Path,
    view: &View,
) -> anyhow::Result<Vec<Running>> {
    let mut running = Vec::new();
    let linked = plan.stacks.iter().any(Stack::is_linked);
    let mut missing = linked
        .then(sweep)
        .and_then(Result::err)
        .map(|error| format!("{error:#}"));
    for (number, stack) in plan.stacks.iter().enumerate() {
        if stack.is_linked() && missing.is_some() {
            continue;
        }
        view.step(&format!("starting {}", stack.name), 0);
        match Running::start(&stack.place, ("demo", number), binaries, out) {
            Ok(started) => running.push(started),
            Err(error) if stack.is_linked() => {
                missing = Some(format!("{}: {error:#}", stack.name));
            }
            Err(error) => return Err(error),
        }
    }
    if let Some(reason) = missing {
        running.retain(|running| !matches!(running, Running::Linked(_)));
        view.say(plan.leave_out_links(&reason));
    }
    Ok(running)
}
