//! Searches the protocol model and prints the results: each configuration is searched completely with all rules, and
//! each rule is switched off in the configuration that needs it. docs/spec/model.md has the results.

use std::process::ExitCode;

use clap::Parser;
use pmnet_model::check::{Outcome, check};
use pmnet_model::configuration::Configuration;
use pmnet_model::{Rule, Rules, catalogue};
use serde_json::json;

/// Searches the protocol in small configurations completely; and shows what happens without each of its rules.
#[derive(Parser)]
#[command(name = "pmnet-model", version)]
struct Arguments {
    /// Lists configurations and rules.
    #[arg(long)]
    list: bool,
    /// Only this configuration, and the rules that are shown in it.
    #[arg(long, value_name = "CONFIGURATION")]
    only: Option<String>,
    /// Only this: the counterexample without the rule.
    #[arg(long, value_name = "RULE")]
    without: Option<String>,
    /// One JSON object a line.
    #[arg(long)]
    json: bool,
    /// Threads of a search. Counterexamples are searched with one, so that the shortest is found.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=64))]
    threads: u8,
    /// Only the small configurations.
    #[arg(long)]
    quick: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.list {
        list();
        return ExitCode::SUCCESS;
    }
    match run(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(text) => {
            eprintln!("pmnet-model: {text}; --list shows all names");
            ExitCode::FAILURE
        }
    }
}

fn list() {
    println!("configurations");
    for configuration in catalogue::all() {
        let size = if configuration.quick {
            "quick"
        } else {
            "large"
        };
        println!(
            "  {:22} {size}  {}",
            configuration.name, configuration.about
        );
    }
    println!("rules");
    for rule in Rule::all() {
        println!(
            "  {:22} {:24} shown in {}",
            rule.name(),
            rule.source(),
            rule.configuration()
        );
    }
}

fn configuration(name: &str) -> Result<Configuration, String> {
    catalogue::named(name).ok_or_else(|| format!("no configuration is called {name}"))
}

/// Runs the searches that the command line names. Returns `false` if a result is not as expected.
fn run(arguments: &Arguments) -> Result<bool, String> {
    let only = arguments.only.as_deref().map(configuration).transpose()?;
    let mut good = true;
    if !arguments.json {
        println!(
            "{:22} {:22} {:>12} {:>11} {:>5} {:>7}  verdict",
            "configuration", "without", "states", "unique", "depth", "seconds"
        );
    }
    if let Some(name) = &arguments.without {
        let rule = Rule::named(name).ok_or_else(|| format!("no rule is called {name}"))?;
        let at = only.map_or_else(|| configuration(rule.configuration()), Ok)?;
        return Ok(without(arguments, &at, rule, true));
    }
    let all = catalogue::all()
        .into_iter()
        .filter(|configuration| match &only {
            Some(only) => configuration.name == only.name,
            None => configuration.quick || !arguments.quick,
        });
    for configuration in all {
        let outcome = check(&configuration, Rules::all(), usize::from(arguments.threads));
        report(arguments, &outcome, None, true);
        good &= outcome.clean();
    }
    for rule in Rule::all() {
        let at = configuration(rule.configuration())?;
        if only.as_ref().is_none_or(|only| only.name == at.name) {
            good &= without(arguments, &at, rule, false);
        }
    }
    Ok(good)
}

fn without(arguments: &Arguments, at: &Configuration, rule: Rule, path: bool) -> bool {
    let outcome = check(at, Rules::without(rule), 1);
    report(arguments, &outcome, Some(rule), path);
    outcome.counterexample.is_some()
}

fn report(arguments: &Arguments, outcome: &Outcome, rule: Option<Rule>, path: bool) {
    let seconds = outcome.elapsed.as_secs_f64();
    let found = outcome.counterexample.as_ref();
    if arguments.json {
        let line = json!({
            "configuration": outcome.configuration,
            "without": rule.map(Rule::name),
            "states": outcome.states,
            "unique": outcome.unique,
            "depth": outcome.depth,
            "seconds": seconds,
            "exhausted": outcome.exhausted,
            "violated": found.map(|found| found.invariant),
            "steps": found.map(|found| &found.steps),
            "missed": outcome.missed,
        });
        println!("{line}");
        return;
    }
    let verdict = match found {
        Some(found) => format!("not \"{}\", {} steps", found.invariant, found.steps.len()),
        None if rule.is_some() => "NO COUNTEREXAMPLE".to_owned(),
        None if !outcome.exhausted => "NOT EXHAUSTED".to_owned(),
        None if outcome.missed.is_empty() => "holds".to_owned(),
        None => format!("NOT REACHED: {}", outcome.missed.join(", ")),
    };
    println!(
        "{:22} {:22} {:>12} {:>11} {:>5} {seconds:>7.1}  {verdict}",
        outcome.configuration,
        rule.map_or("", Rule::name),
        outcome.states,
        outcome.unique,
        outcome.depth,
    );
    for (number, step) in found
        .iter()
        .filter(|_| path)
        .flat_map(|found| (1..).zip(&found.steps))
    {
        println!("  {number:>3}  {step}");
    }
}
