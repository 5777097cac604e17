//! Takes the commands of a client, and sends each command to its shard.

use bytes::Bytes;
use pmnet_resp::{Arguments, ProtocolError, Status, reply, write_command};

use super::backs::{HOME, Stop, Taken};
use super::client::{Client, Common};
use super::cluster;
use super::end::{How, When};
use super::link::{KEPT_BYTES_MAX, Owed};
use super::replies::{Slot, Wait};
use super::route::{CROSSSLOT, Command, Kind, Place, kind};
use super::scan;
use super::state::Effect;
use super::subscribe::home_of_message;
use super::trust::Trust;
use crate::client::SYNTAX;
use crate::client::info::wants_section;
use crate::client::input::Input;

const PING: &[u8] = b"*1\r\n$4\r\nPING\r\n";

impl Client {
    /// Takes complete commands while their replies fit. Returns whether a command was taken.
    pub(super) fn take_commands(&mut self, budget: &mut usize, common: &Common) -> bool {
        // The input is taken out so that a command can borrow from it while the rest changes.
        let mut input = std::mem::take(&mut self.input);
        let mut any = false;
        while *budget > 0 && self.may_take() && !input.starved() {
            match input.poll(self.trust.sender()) {
                Ok(Status::Complete) => {}
                Ok(Status::Incomplete) => break,
                Err(error) => {
                    self.not_taken(error, &mut input, common);
                    break;
                }
            }
            let arguments = input.arguments();
            if !arguments.is_empty() && self.take(&arguments, input.frame(), common).is_none() {
                break;
            }
            input.consume();
            *budget -= 1;
            any = true;
        }
        input.shrink(KEPT_BYTES_MAX);
        self.input = input;
        any
    }

    /// Whether the next command may be taken.
    fn may_take(&self) -> bool {
        !self.end.has_come() && self.trust != Trust::Asked && self.replies.have_room()
    }

    /// Handles input that is not a command, or that is larger than the client may send before it logs in.
    fn not_taken(&mut self, error: ProtocolError, input: &mut Input, common: &Common) {
        let strange = matches!(
            error,
            ProtocolError::StrangerBulk | ProtocolError::StrangerMultibulk
        );
        let mut answer = reply::error(&format!("ERR {error}"));
        if strange && !matches!(self.trust, Trust::Refused(_)) {
            // A front is asked, because the client may need no login.
            match self.probe() {
                // The front cannot be asked.
                Stop::Answered(error) | Stop::Own(error) => answer = error,
                Stop::Later => return,
            }
        }
        let wait = Wait::Ready(answer);
        self.replies.expect(Slot {
            wait,
            silent: false,
            taken: common.tally.now(),
        });
        self.end.comes(When::Answered, How::Lingering);
        input.clear();
    }

    /// Takes a command, which has at least a name. `None`: the command stays in the input.
    fn take(&mut self, arguments: &Arguments<'_>, frame: &[u8], common: &Common) -> Option<()> {
        let command = Command {
            arguments,
            frame,
            verdict: common.table.verdict(arguments),
            common,
        };
        let done = match self.command(&command) {
            Err(Stop::Own(answer)) => self.own(answer).map(Some),
            done => done,
        };
        common.tally.note(&done);
        let wait = match done {
            Ok(wait) => wait,
            Err(Stop::Answered(answer) | Stop::Own(answer)) => Some(Wait::Ready(answer)),
            Err(Stop::Later) => return None,
        };
        // RESET ends CLIENT REPLY OFF, so its reply is sent.
        let silent = self.replying.is_silent() && !arguments.is(0, "RESET");
        if let Some(wait) = wait {
            let taken = common.tally.now();
            self.replies.expect(Slot {
                wait,
                silent,
                taken,
            });
        }
        self.replying.command_over();
        Some(())
    }

    /// Sends a command to its shard or answers it. Returns the source of the command's reply; `None`: the command has
    /// no reply.
    fn command(&mut self, command: &Command<'_>) -> Result<Option<Wait>, Stop> {
        let Command {
            arguments,
            frame,
            verdict,
            common,
        } = command;
        let kind = kind(verdict, arguments);
        let resets = kind == Kind::State && arguments.is(0, "RESET");
        if !resets && !matches!(kind, Kind::Subscribe | Kind::Quit) {
            self.as_subscriber(&kind, arguments)?;
        }
        let backs = &mut self.backs;
        if self.transactions.are_open() && !resets && kind != Kind::Quit {
            let wait = self.transactions.take(&kind, command, backs)?;
            return Ok(Some(wait));
        }
        let wait = match kind {
            Kind::Keys | Kind::Home if wants_section(arguments) => {
                backs.forward(HOME, frame).map(|_| Wait::Info(HOME))
            }
            Kind::Keys => self.by_keys(command),
            Kind::Home | Kind::Exec | Kind::Discard => backs.forward(HOME, frame),
            Kind::All(merge) => backs.forward_to_all(frame, merge),
            Kind::Scan => self.scan(arguments),
            Kind::State => self.change_state(arguments, frame),
            Kind::Reply => return self.reply(arguments),
            Kind::Subscribe => self.subscriptions.subscribe(command, &self.replies, backs),
            Kind::Publish => {
                let shard = home_of_message(arguments.get(1), &common.map);
                backs.forward(shard, frame)
            }
            Kind::Multi => self.transactions.begin(command, backs),
            Kind::Watch => self.transactions.watch(command, backs),
            Kind::Unwatch => self.transactions.unwatch(command, backs),
            Kind::Cluster => match backs.who.local {
                Some(at) => Err(Stop::Own(cluster::answer(
                    arguments,
                    &common.map,
                    at,
                    backs.state.resp3(),
                ))),
                None => {
                    self.end.comes(When::Written, How::AtOnce);
                    return Ok(None);
                }
            },
            Kind::Own(answer) => Err(Stop::Own(match command.place() {
                // Like Redis, the router checks the slots first.
                Place::Cross => CROSSSLOT,
                _ => answer,
            })),
            Kind::Quit => {
                self.end.comes(When::Answered, How::AtOnce);
                Ok(Wait::Ready(reply::OK))
            }
        };
        wait.map(Some)
    }

    fn by_keys(&mut self, command: &Command<'_>) -> Taken {
        let shard = match command.place() {
            Place::Anywhere => HOME,
            Place::Cross => return Err(Stop::Own(CROSSSLOT)),
            Place::Slot(slot) => {
                let shard = command.server_of(slot).map_err(Stop::Own)?;
                self.backs.last = shard;
                shard
            }
        };
        self.backs.forward(shard, command.frame)
    }

    /// Sends a SCAN to the shard that its cursor names.
    fn scan(&mut self, arguments: &Arguments<'_>) -> Taken {
        let Some((shard, frame)) = scan::for_shard(arguments, self.backs.len()) else {
            return Err(Stop::Own(reply::error("ERR invalid cursor")));
        };
        self.backs.forward(shard, &frame)?;
        Ok(Wait::Scan(shard))
    }

    /// Sends a command that changes the client's settings.
    fn change_state(&mut self, arguments: &Arguments<'_>, frame: &[u8]) -> Taken {
        // Earlier commands are answered under the old settings.
        if !self.replies.is_idle() || self.backs.state.is_full() {
            return Err(Stop::Later);
        }
        let effect = Effect::of(arguments, frame);
        if effect.is_login() && self.subscriptions.is_any() {
            // Each shard at which the client is subscribed would send the error of a subscriber, and the
            // other shards would not.
            return Err(Stop::Own(reply::error(
                "ERR pmnet: unsubscribe before logging in: subscriptions have the rights of their user",
            )));
        }
        self.backs.change_state(effect, frame)
    }

    /// Carries out CLIENT REPLY in the router. The router never passes CLIENT REPLY to a front, so the front replies to
    /// each command.
    fn reply(&mut self, arguments: &Arguments<'_>) -> Result<Option<Wait>, Stop> {
        let Some(replying) = self.replying.after(arguments) else {
            return Err(Stop::Own(reply::error(SYNTAX)));
        };
        let before = std::mem::replace(&mut self.replying, replying);
        if replying.is_silent() {
            return Ok(None);
        }
        // The reply to CLIENT REPLY ON is sent.
        let done = self.own(reply::OK);
        if let Err(Stop::Later) = done {
            self.replying = before;
        }
        done.map(Some)
    }

    /// Answers a command in the router itself, if the client is allowed to run commands.
    fn own(&mut self, answer: Bytes) -> Taken {
        if let Some(error) = self.trust.take_refusal() {
            return Ok(Wait::Ready(error));
        }
        let subscriber = !self.backs.state.resp3() && self.subscriptions.is_any();
        if self.trust == Trust::Unknown && !self.transactions.are_open() && !subscriber {
            return Err(self.probe());
        }
        Ok(Wait::Ready(answer))
    }

    /// Asks the first shard whether this client is allowed to run commands. Until the shard has answered, the command
    /// waits.
    fn probe(&mut self) -> Stop {
        if let Err(stop) = self.backs.ready(HOME) {
            return stop;
        }
        self.backs.send(HOME, PING, Owed::Probe);
        self.trust = Trust::Asked;
        Stop::Later
    }

    /// Checks a command of a subscribed RESP2 client, which may send few commands.
    fn as_subscriber(&mut self, kind: &Kind, arguments: &Arguments<'_>) -> Result<(), Stop> {
        if self.backs.state.resp3() {
            return Ok(());
        }
        if self.replies.change_subscriptions() {
            return Err(Stop::Later);
        }
        if !self.subscriptions.is_any() {
            return Ok(());
        }
        if arguments.is(0, "PING") && arguments.len() <= 2 {
            let mut pong = Vec::new();
            write_command(&mut pong, &[&b"pong"[..], arguments.get(1)]);
            return Err(Stop::Answered(pong.into()));
        }
        if let Kind::Own(error) = kind
            && error.starts_with(b"-ERR unknown command")
        {
            return Err(Stop::Answered(error.clone()));
        }
        let name = crate::client::shown(arguments).to_ascii_lowercase();
        Err(Stop::Answered(reply::error(&format!(
            "ERR Can't execute '{name}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this \
             context"
        ))))
    }
}
