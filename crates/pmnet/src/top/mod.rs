//! `pmnet top`: shows several processes in a terminal.
//!
//! Purpose: each status port is asked at intervals by a thread of its own, so that a process that does not answer does
//! not delay the other threads. The main thread draws. Invariant: when the program ends, even by a signal or a panic,
//! it restores the terminal. Not allowed here: knowledge about the roles (`columns.rs` names their metrics), and
//! judgements about them (each status port gives its own, see `crate::status`).

mod columns;
mod model;

use std::io::IsTerminal;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use clap::Args;
use pmnet_cli::{ConfigError, Shutdown, on_signals, tell};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style as Shade};
use ratatui::text::Line as Drawn;
use ratatui::widgets::Paragraph;
use ratatui::{DefaultTerminal, Frame};
use std::sync::atomic::Ordering;

use crate::ask::{Processes, TLS_HELP, of_fleet, state};
use crate::cli::EtcdArgs;
use crate::status::Spot;
use model::{Line, Order, Process, Style, lines, summary};

const EXAMPLES: &str = "\
Examples:
  pmnet top --at 127.0.0.1:9464,127.0.0.1:9465,unix:/run/pmnet/server.sock
  pmnet top --at 'https://10.0.0.3:9464?ca=ca.pem&cert=me.pem&key=me.key'
  pmnet top --config /etc/pmnet/pmnet.toml
  pmnet top --fleet prod --etcd http://10.0.0.7:2379
                                  the server and the devices of a shard that
                                  have registered a status port in etcd
  pmnet top --at 127.0.0.1:9464 --once
                                  the same as text, once

The first part lists the problems, each with the section of docs/operate/alerts.md that says what to do. A process \
that does not answer is a problem, too. The second part is a table for each role. Rates and times are those of the \
last interval. Times are the upper bounds of histogram buckets (powers of two).

Keys: q ends. t, p, r, l, b sort the rows: problems first, by place, by rate, by p99, by the lag of the store. Arrows and page keys scroll.

--once: the exit code is 0 if all processes are ready, 1 if one is not or does not answer. pmnet status --at … --json prints this state as JSON.";

/// Shortest and longest interval between two questions, in seconds.
const INTERVAL: (f64, f64) = (0.1, 3600.0);
/// Interval at which the main thread checks whether it must end.
const LOOK: Duration = Duration::from_millis(50);

/// The command line of `pmnet top`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct TopArgs {
    #[command(flatten)]
    processes: Processes,
    /// Name of a fleet. Its server and devices are shown, too, if they have registered a status port in etcd. Fronts
    /// and controllers are not in etcd: name them with --at.
    #[arg(long, value_name = "NAME")]
    fleet: Option<String>,
    #[command(flatten)]
    etcd: EtcdArgs,
    /// With --fleet: number of the shard.
    #[arg(long, default_value_t = 0, requires = "fleet")]
    shard: u32,
    #[arg(long, value_name = "OPTIONS", requires = "fleet", help = TLS_HELP)]
    tls: Option<String>,
    /// Seconds between two reads of the status ports.
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    interval: f64,
    /// Order of the rows of a table.
    #[arg(long, value_enum, default_value_t = Order::Trouble)]
    sort: Order,
    /// Print the tables once, from two reads with the interval between them, and end.
    #[arg(long)]
    once: bool,
}

impl TopArgs {
    /// Returns the addresses of the processes that are asked.
    fn spots(&self) -> anyhow::Result<Vec<Spot>> {
        let Some(fleet) = &self.fleet else {
            self.etcd.nothing()?;
            return Ok(self.processes.places()?);
        };
        let mut all = of_fleet(fleet, &self.etcd, self.shard, self.tls.as_deref())?;
        if self.processes.are_named() {
            let named = self.processes.places()?.into_iter();
            let known: Vec<_> = all.iter().map(|spot| spot.place.clone()).collect();
            all.extend(named.filter(|spot| !known.contains(&spot.place)));
        }
        Ok(all)
    }
}

/// Shows processes until the program is asked to end. With `--once`, returns whether all processes are ready; otherwise
/// returns true.
///
/// # Errors
/// The command line is wrong, or the terminal cannot be used.
pub fn main(args: &TopArgs) -> anyhow::Result<bool> {
    let spots = args.spots()?;
    if !(INTERVAL.0..=INTERVAL.1).contains(&args.interval) {
        let text = format!(
            "--interval {}: it must be from {} to {} seconds",
            args.interval, INTERVAL.0, INTERVAL.1
        );
        return Err(ConfigError(text).into());
    }
    let interval = Duration::from_secs_f64(args.interval);
    if args.once {
        return once(&spots, interval, args.sort);
    }
    if !std::io::stdout().is_terminal() {
        let text = "stdout is no terminal: pmnet top --once prints a table";
        return Err(ConfigError(text.into()).into());
    }
    // Signals are handled before the terminal is changed. So a signal cannot leave the terminal changed.
    let asked = on_signals()?;
    let watch = Watch::start(spots, interval)?;
    // If this fails, the terminal may be partly changed.
    let terminal = ratatui::try_init().inspect_err(|_| ratatui::restore());
    let mut terminal = terminal.context("the terminal cannot be used")?;
    let mut screen = Screen::new(args.sort, interval);
    let shown = screen.run(&mut terminal, &watch, &asked);
    ratatui::try_restore().context("the terminal cannot be set back")?;
    shown.map(|()| true)
}

/// Asks each process twice, and prints the tables.
fn once(spots: &[Spot], interval: Duration, order: Order) -> anyhow::Result<bool> {
    let places = spots.iter().map(|spot| spot.place.to_string());
    let mut processes: Vec<Process> = places.map(Process::new).collect();
    for look in 0..2 {
        if look > 0 {
            std::thread::sleep(interval);
        }
        std::thread::scope(|scope| {
            let asked: Vec<_> = spots
                .iter()
                .map(|spot| scope.spawn(move || (state(spot), Instant::now())))
                .collect();
            for (process, asked) in processes.iter_mut().zip(asked) {
                let (answer, at) = asked.join().map_err(|_| anyhow!("a thread has panicked"))?;
                process.note(answer.map_err(|error| format!("{error:#}")), at);
            }
            anyhow::Ok(())
        })?;
    }
    tell(format_args!("{}", summary(&processes)));
    for line in lines(&processes, order, Instant::now(), usize::MAX / 2) {
        tell(format_args!("{}", line.text));
    }
    Ok(processes.iter().all(Process::is_ready))
}

/// The threads that ask the processes, one thread for each process.
struct Watch {
    processes: Arc<Mutex<Vec<Process>>>,
    threads: Vec<JoinHandle<()>>,
}

impl Watch {
    /// Starts the threads. The threads end when the program ends.
    fn start(spots: Vec<Spot>, interval: Duration) -> anyhow::Result<Watch> {
        let places = spots.iter().map(|spot| spot.place.to_string());
        let processes = Arc::new(Mutex::new(places.map(Process::new).collect::<Vec<_>>()));
        let mut threads = Vec::new();
        for (at, spot) in spots.into_iter().enumerate() {
            let all = Arc::clone(&processes);
            let ask = move || {
                loop {
                    let next = Instant::now() + interval;
                    let answer = state(&spot).map_err(|error| format!("{error:#}"));
                    let now = Instant::now();
                    all.lock().unwrap_or_else(PoisonError::into_inner)[at].note(answer, now);
                    std::thread::sleep(next.saturating_duration_since(now));
                }
            };
            let thread = std::thread::Builder::new().name(format!("ask-{at}"));
            threads.push(thread.spawn(ask).context("cannot start a thread")?);
        }
        Ok(Watch { processes, threads })
    }

    /// Returns the processes with their latest answers.
    fn processes(&self) -> anyhow::Result<Vec<Process>> {
        if self.threads.iter().any(JoinHandle::is_finished) {
            bail!("a thread that asks has panicked");
        }
        let all = self.processes.lock();
        Ok(all.unwrap_or_else(PoisonError::into_inner).clone())
    }
}

/// The state of the display.
struct Screen {
    order: Order,
    interval: Duration,
    /// Index of the topmost line on the screen.
    from: usize,
    /// Number of lines that fit on the screen.
    page: usize,
    /// Lines have colours.
    colours: bool,
}

/// The action that a pressed key causes.
#[derive(Debug, PartialEq, Eq)]
enum Act {
    Nothing,
    Draw,
    End,
}

impl Screen {
    fn new(order: Order, interval: Duration) -> Screen {
        Screen {
            order,
            interval,
            from: 0,
            page: 1,
            colours: std::env::var_os("NO_COLOR").is_none_or(|text| text.is_empty()),
        }
    }

    /// Draws until the program is asked to end.
    fn run(
        &mut self,
        terminal: &mut DefaultTerminal,
        watch: &Watch,
        asked: &Shutdown,
    ) -> anyhow::Result<()> {
        let mut next = Instant::now();
        while !asked.load(Ordering::Relaxed) {
            let now = Instant::now();
            if now >= next {
                let processes = watch.processes()?;
                // The first answers are shown as soon as they arrive.
                let all_asked = processes.iter().all(Process::was_asked);
                next = now + if all_asked { self.interval } else { LOOK };
                let known: Vec<Process> =
                    processes.into_iter().filter(Process::was_asked).collect();
                terminal
                    .draw(|frame| self.draw(frame, &known, now))
                    .context("the terminal cannot be written")?;
            }
            let wait = LOOK.min(next.saturating_duration_since(now));
            if event::poll(wait).context("the terminal cannot be read")? {
                match self.act(&event::read().context("the terminal cannot be read")?) {
                    Act::Nothing => {}
                    Act::Draw => next = now,
                    Act::End => break,
                }
            }
        }
        Ok(())
    }

    fn act(&mut self, event: &Event) -> Act {
        let Event::Key(KeyEvent {
            code,
            modifiers,
            kind: KeyEventKind::Press | KeyEventKind::Repeat,
            ..
        }) = event
        else {
            return if matches!(event, Event::Resize(..)) {
                Act::Draw
            } else {
                Act::Nothing
            };
        };
        match code {
            KeyCode::Char('c') if modifiers.contains(KeyModifiers::CONTROL) => return Act::End,
            KeyCode::Char('q') | KeyCode::Esc => return Act::End,
            KeyCode::Char('t') => self.order = Order::Trouble,
            KeyCode::Char('p') => self.order = Order::Place,
            KeyCode::Char('r') => self.order = Order::Rate,
            KeyCode::Char('l') => self.order = Order::Latency,
            KeyCode::Char('b') => self.order = Order::Behind,
            KeyCode::Up => self.from = self.from.saturating_sub(1),
            KeyCode::Down => self.from += 1,
            KeyCode::PageUp => self.from = self.from.saturating_sub(self.page),
            KeyCode::PageDown => self.from += self.page,
            KeyCode::Home => self.from = 0,
            KeyCode::End => self.from = usize::MAX,
            _ => return Act::Nothing,
        }
        Act::Draw
    }

    fn draw(&mut self, frame: &mut Frame<'_>, processes: &[Process], now: Instant) {
        let parts = [
            Constraint::Length(1),
            Constraint::Min(0),
            Constraint::Length(1),
        ];
        let [head, body, foot] = Layout::vertical(parts).areas(frame.area());
        let title = format!("pmnet top: {}", summary(processes));
        frame.render_widget(Paragraph::new(title).style(Modifier::BOLD), head);
        let all = lines(processes, self.order, now, usize::from(body.width));
        self.page = usize::from(body.height).max(1);
        // The last page is shown full, so the offset is limited.
        self.from = self.from.min(all.len().saturating_sub(self.page));
        let shown = all.iter().skip(self.from).take(self.page);
        let shown: Vec<Drawn<'_>> = shown.map(|line| self.drawn(line)).collect();
        frame.render_widget(Paragraph::new(shown), body);
        frame.render_widget(Paragraph::new(self.foot(all.len())), foot);
    }

    fn drawn<'a>(&self, line: &'a Line) -> Drawn<'a> {
        let shade = match line.style {
            Style::Plain => Shade::new(),
            Style::Title => Shade::new().add_modifier(Modifier::BOLD),
            Style::Head => Shade::new().add_modifier(Modifier::UNDERLINED),
            Style::Bad if self.colours => Shade::new().fg(Color::Red).add_modifier(Modifier::BOLD),
            Style::Bad => Shade::new().add_modifier(Modifier::BOLD),
        };
        Drawn::styled(line.text.as_str(), shade)
    }

    fn foot(&self, lines: usize) -> String {
        let order = match self.order {
            Order::Trouble => "trouble",
            Order::Place => "place",
            Order::Rate => "rate",
            Order::Latency => "latency",
            Order::Behind => "behind",
        };
        let more = lines.saturating_sub(self.from + self.page);
        let more = if more > 0 {
            format!("  {more} more lines: arrows")
        } else {
            String::new()
        };
        format!("q quit  sorted by {order}: t p r l b{more}")
    }
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use serde_json::json;

    use super::*;

    fn key(code: KeyCode) -> Event {
        Event::Key(KeyEvent::new(code, KeyModifiers::NONE))
    }

    fn screen(colours: bool) -> Screen {
        Screen {
            colours,
            ..Screen::new(Order::default(), Duration::from_secs(1))
        }
    }

    fn processes(count: u16) -> Vec<Process> {
        let all = (1..=count).map(|port| {
            let mut process = Process::new(format!("127.0.0.1:{port}"));
            let metrics = json!({ "pmnet_front_clients": port });
            let mut state = model::state(1, &[(json!({ "shard": "0" }), metrics)]);
            state["loops"][0]["advice"] =
                json!([{ "alert": "PmnetDevicesSilent", "text": "One is lost." }]);
            process.note(Ok(state), Instant::now());
            process
        });
        all.collect()
    }

    #[test]
    fn keys_sort_scroll_and_end() {
        let mut screen = screen(true);
        assert_eq!(screen.act(&key(KeyCode::Char('r'))), Act::Draw);
        assert_eq!(screen.order, Order::Rate);
        assert!(screen.foot(3).contains("sorted by rate"));
        assert_eq!(screen.act(&key(KeyCode::Char('x'))), Act::Nothing);
        assert_eq!(screen.act(&key(KeyCode::Up)), Act::Draw);
        assert_eq!(screen.from, 0);
        assert_eq!(screen.act(&Event::Resize(1, 1)), Act::Draw);
        assert_eq!(screen.act(&key(KeyCode::Char('q'))), Act::End);
        let control = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(screen.act(&Event::Key(control)), Act::End);
    }

    #[test]
    fn it_is_drawn_into_any_size() {
        let all = processes(40);
        for (width, height) in [(0, 0), (1, 1), (3, 2), (20, 5), (80, 24), (300, 100)] {
            let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
            let mut screen = screen(true);
            for from in [0, 5, usize::MAX] {
                screen.from = from;
                terminal
                    .draw(|frame| screen.draw(frame, &all, Instant::now()))
                    .unwrap();
            }
        }
    }

    #[test]
    fn without_colours_only_the_weight_of_letters_tells() {
        for (colours, expected) in [(true, Color::Red), (false, Color::Reset)] {
            let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
            let mut screen = screen(colours);
            terminal
                .draw(|frame| screen.draw(frame, &processes(1), Instant::now()))
                .unwrap();
            let buffer = terminal.backend().buffer();
            assert_eq!(buffer[(0, 1)].fg, expected);
            assert!(buffer[(0, 1)].modifier.contains(Modifier::BOLD));
            let text: String = buffer.content().iter().map(|cell| cell.symbol()).collect();
            assert!(text.contains("What to do: PmnetDevicesSilent"), "{text}");
            assert!(text.contains("FRONTS") && text.contains("q quit"), "{text}");
        }
    }
}
