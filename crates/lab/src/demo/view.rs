//! The live view. On a terminal the view is a progress bar with one line of text. Elsewhere the
//! view is lines of text.

use std::cell::RefCell;
use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Shows the progress.
pub struct View {
    bar: ProgressBar,
    plain: bool,
    quiet: bool,
    last: RefCell<String>,
}

impl View {
    pub fn new(quiet: bool, steps: u64) -> View {
        let plain = !std::io::stderr().is_terminal();
        let target = if plain || quiet {
            ProgressDrawTarget::hidden()
        } else {
            ProgressDrawTarget::stderr()
        };
        let bar = ProgressBar::with_draw_target(Some(steps), target);
        if let Ok(style) = ProgressStyle::with_template("{elapsed:>4} {bar:30} {percent:>3}% {msg}")
        {
            bar.set_style(style);
        }
        View {
            bar,
            plain,
            quiet,
            last: RefCell::default(),
        }
    }

    /// Prints a sentence that stays on the screen.
    pub fn say(&self, text: &str) {
        if self.quiet {
            return;
        }
        if self.plain {
            println!("{text}");
        } else {
            self.bar.println(text);
        }
    }

    /// Shows the present step. `steps`: the number of steps by which the bar advances.
    pub fn step(&self, text: &str, steps: u64) {
        self.bar.inc(steps);
        self.bar.set_message(text.to_owned());
        // Counters in the text change ten times a second, so without a terminal only new steps are
        // printed.
        if self.plain && !self.quiet && steps > 0 && *self.last.borrow() != text {
            println!("{text}");
            text.clone_into(&mut self.last.borrow_mut());
        }
    }

    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
