//! Commands that the front answers itself.

use bytes::Bytes;
use pmnet_resp::reply::{self, OK};
use pmnet_resp::{Arguments, Parser, Status};
use pmnet_wire::command::Protocol;

use super::Connection;
use super::about::{ASK_TIME_MAX, About};
use super::back::calls::{Purpose, question};
use super::back::execute::Executed;
use super::back::pack::{Company, Kind, Part};
use super::client_command::{ClientsAsk, Wanted, clients_question, parse_pause, refused};
use super::command::Command;
use super::context::{Env, Later};
use super::errors::SYNTAX;
use super::mode::Mode;
use super::replies::{Muted, Slot};
use super::replying::Replying;
use super::rights::admit::Admission;
use super::settings::{Hello, parse_database};
use super::shared::Shared;
use super::transaction::{Rest, Transaction};
use crate::limits::REQUESTS;
use crate::table::{Local, Sub};
use crate::tracking::Tracker;
use crate::upstream::{Call, Outcome};
use crate::users::Users;

impl Connection {
    /// Answers a local command whose number of arguments has been checked.
    ///
    /// # Errors
    /// [`Later`]: the command has to wait.
    pub(super) fn local(
        &mut self,
        local: Local,
        command: &Command<'_>,
        env: &mut Env<'_>,
    ) -> Result<(), Later> {
        let arguments = command.arguments;
        let answer = match local {
            Local::Ping => match arguments.len() {
                1 => Bytes::from_static(b"+PONG\r\n"),
                2 => reply::bulk(arguments.get(1)),
                _ => reply::error("ERR wrong number of arguments for 'ping' command"),
            },
            Local::Echo => reply::bulk(arguments.get(1)),
            Local::Hello => return self.hello(arguments, env),
            Local::Auth => return self.auth(arguments, env),
            Local::Select => return self.select(arguments, env),
            Local::Quit => self.quit(),
            Local::Reset => self.reset(&env.shared.users),
            Local::Client => return self.client(command, env),
            Local::Multi if self.face.mode.transaction().is_some() => {
                reply::error("ERR MULTI calls can not be nested")
            }
            Local::Multi => {
                let transaction = Transaction::new(self.face.settings.selected);
                self.face.mode = Mode::Queueing(transaction);
                OK
            }
            Local::Exec => return self.execute(env),
            Local::Discard if self.face.mode.take_transaction().is_none() => {
                reply::error("ERR DISCARD without MULTI")
            }
            Local::Discard | Local::Unwatch => {
                self.back.passing.unwatch();
                OK
            }
        };
        self.reply(answer);
        Ok(())
    }

    /// QUIT: the outstanding commands are answered, and then the connection is closed.
    fn quit(&mut self) -> Bytes {
        self.face.end.end();
        self.back.passing.drop_direct();
        OK
    }

    /// RESET: sets the connection back to the state of a new connection.
    fn reset(&mut self, users: &Users) -> Bytes {
        self.face.mode = Mode::Ordinary;
        self.back.passing.unwatch();
        self.back.passing.drop_direct();
        self.face.pending.replies.mute(Muted::No);
        self.replying = Replying::On;
        self.face.settings.reset();
        self.tracks.on = false;
        self.rights.reset(users);
        Bytes::from_static(b"+RESET\r\n")
    }

    /// Handles AUTH. Only the connection that sends AUTH is logged in.
    fn auth(&mut self, arguments: &Arguments<'_>, env: &mut Env<'_>) -> Result<(), Later> {
        let answer = match arguments.len() {
            2 => self.log_in(None, arguments.get(1), env)?,
            3 => self.log_in(Some(arguments.get(1)), arguments.get(2), env)?,
            _ => Some(reply::error(SYNTAX)),
        };
        if let Some(answer) = answer {
            self.reply(answer);
        }
        Ok(())
    }

    /// Logs in by AUTH, or by the AUTH of HELLO. Returns the reply; `None` if the client already has a reply.
    fn log_in(
        &mut self,
        user: Option<&[u8]>,
        password: &[u8],
        env: &mut Env<'_>,
    ) -> Result<Option<Bytes>, Later> {
        let passing = &mut self.back.passing;
        match self.rights.log_in(user, password, passing, env.shared) {
            Ok(answer) => Ok(Some(answer)),
            Err(asking) => self.await_answer(asking, None, env).map(|()| None),
        }
    }

    fn hello(&mut self, arguments: &Arguments<'_>, env: &mut Env<'_>) -> Result<(), Later> {
        let wish = match Hello::parse(arguments, self.face.protocol()) {
            Ok(wish) => wish,
            Err(error) => {
                self.reply(error);
                return Ok(());
            }
        };
        if let Some((user, password)) = wish.login {
            match self.log_in(Some(user), password, env)? {
                Some(answer) if answer == OK => {}
                Some(error) => {
                    self.reply(error);
                    return Ok(());
                }
                None => return Ok(()),
            }
        } else if wish.wrong.is_none() {
            match self.rights.greets(env.shared) {
                Admission::Answered(error) => {
                    self.reply(error);
                    return Ok(());
                }
                Admission::Awaits(asking) => return self.await_answer(asking, None, env),
                _ => {}
            }
        }
        if let Some(wrong) = wish.wrong {
            self.reply(wrong);
            return Ok(());
        }
        if wish.protocol != self.face.protocol() && self.back.passing.subscriptions() > 0 {
            if let Some(name) = wish.name {
                self.face.settings.name = Bytes::copy_from_slice(name);
            }
            // In RESP2 a subscriber cannot send HELLO, so it cannot change back to RESP3.
            self.back.passing.begin_resp2(&mut self.face, arguments);
            return Ok(());
        }
        if !self.ask_about(&wish, env)? {
            let name = wish.name.map(Bytes::copy_from_slice);
            let greeting = self.face.greet(wish.protocol, name, env.shared);
            self.reply(greeting);
        }
        Ok(())
    }

    /// Asks the store for its facts if they are not known. Returns false if the facts are known, or if the store cannot
    /// be asked.
    fn ask_about(&mut self, wish: &Hello<'_>, env: &mut Env<'_>) -> Result<bool, Later> {
        let (store, now) = (env.shared.name.as_ref(), env.shared.now);
        if !env.shared.about.is_to_be_asked(store, now) {
            return Ok(false);
        }
        self.submit_all(env)?;
        let payload = About::question();
        let call = Call::question(
            &payload,
            now.saturating_add(env.shared.call_timeout.min(ASK_TIME_MAX)),
        );
        let submitted = self.back.session.submit(call, env.up, now)?;
        if submitted.is_err() {
            env.shared.about.learn(&Outcome::Unknown, now);
            return Ok(false);
        }
        let purpose = Purpose::Hello {
            protocol: wish.protocol,
            name: wish.name.map(Bytes::copy_from_slice),
        };
        let pending = &mut self.face.pending;
        pending.expect_first(submitted, purpose, payload.len());
        Ok(true)
    }

    /// Handles SELECT. The store is asked about a database that no client has used yet. Without the question, an update
    /// for a database that does not exist could be acknowledged early and lost. If the store does not answer, the
    /// connection ends, because the client means its later commands for the new database.
    fn select(&mut self, arguments: &Arguments<'_>, env: &mut Env<'_>) -> Result<(), Later> {
        let database = match parse_database(arguments.get(1)) {
            Ok(database) => database,
            Err(error) => {
                self.reply(error);
                return Ok(());
            }
        };
        if env.shared.databases.contains(&database) {
            self.face.settings.selected.database = database;
            self.reply(OK);
            return Ok(());
        }
        let size = question(database, &[b"DBSIZE"]);
        let purpose = Purpose::Select { database };
        if !self.back.ask(size, purpose, &mut self.face.context(env))? {
            self.face.end.cut_off();
        }
        Ok(())
    }

    /// Handles EXEC.
    fn execute(&mut self, env: &mut Env<'_>) -> Result<(), Later> {
        // The mode is taken out so that the rest of the client can be changed.
        let mut mode = std::mem::take(&mut self.face.mode);
        let executed = self.back.execute(&mut mode, &mut self.face.context(env));
        self.face.mode = mode;
        match executed? {
            Executed::Sent => {}
            Executed::Reply(answer) => self.reply(answer),
            Executed::Alone(rest) => {
                let answer = self.executed(rest, Vec::new(), env.shared);
                self.reply(answer);
            }
        }
        Ok(())
    }

    /// Handles a transaction that has run, whose commands have these replies. Carries out the front's part and returns
    /// the reply to EXEC.
    pub(super) fn executed(
        &mut self,
        rest: Rest,
        theirs: Vec<&[u8]>,
        shared: &mut Shared,
    ) -> Bytes {
        if let Some(database) = rest.database() {
            self.face.settings.selected.database = database;
        }
        rest.merge(theirs, |frame| self.answer_own(frame, shared))
    }

    /// Returns the front's own reply to a command of a transaction.
    fn answer_own(&mut self, frame: &[u8], shared: &mut Shared) -> Bytes {
        let mut parser = Parser::new(REQUESTS);
        let Ok(Status::Complete) = parser.poll(frame) else {
            return reply::error("ERR pmnet: a queued command cannot be read");
        };
        let arguments = parser.arguments(frame);
        if arguments.is(0, "HELLO") {
            return match Hello::parse(&arguments, self.face.protocol()) {
                Ok(hello) => {
                    let name = hello.name.map(Bytes::copy_from_slice);
                    self.face.greet(hello.protocol, name, shared)
                }
                Err(error) => error,
            };
        }
        match shared.table.verdict(&arguments).sub {
            Sub::Known(sub) => self.client_alone(sub.name, &arguments, shared),
            Sub::Unknown => self.face.settings.set_info(&arguments),
            // This is UNWATCH.
            Sub::No => OK,
        }
    }

    /// CLIENT, with a number of arguments that has been checked.
    pub(super) fn client(&mut self, command: &Command<'_>, env: &mut Env<'_>) -> Result<(), Later> {
        let arguments = command.arguments;
        match Wanted::parse(command.verdict.sub, arguments, env.shared) {
            Wanted::Reply(answer) => self.reply(answer),
            Wanted::Alone(name) => {
                let answer = self.client_alone(name, arguments, env.shared);
                if !answer.is_empty() {
                    self.reply(answer);
                }
            }
            Wanted::Tracking => {
                let until = env.shared.deadline(self.face.pending.times.begun());
                let tracks = &mut self.tracks;
                let answer = match tracks.may_track(arguments, until, env.shared)? {
                    Ok(()) => tracks.client_tracking(self.face.id, arguments, env.shared),
                    Err(error) => error,
                };
                self.reply(answer);
            }
            Wanted::Help(frame) => {
                let part = Part {
                    frame: &frame,
                    key_hash: 0,
                    kind: Kind::Reads,
                    company: Company::Alone,
                    code: false,
                };
                self.back.pack(part, &mut self.face.context(env))?;
            }
            Wanted::Front(ask @ (ClientsAsk::Info | ClientsAsk::List(_)))
                if env.shared.client_fields.is_none() =>
            {
                let info = question(0, &[b"CLIENT", b"INFO"]);
                let purpose = Purpose::ClientFields(ask);
                self.back.ask(info, purpose, &mut self.face.context(env))?;
            }
            Wanted::Front(ask) => {
                self.face.pending.replies.slots.push_back(Slot::Clients);
                self.wait_for_clients(ask);
            }
            Wanted::Store(conditions, ask) => {
                let payload = clients_question(&conditions);
                let purpose = Purpose::ClientsWhich(ask);
                self.back
                    .ask(payload, purpose, &mut self.face.context(env))?;
            }
        }
        Ok(())
    }

    /// Makes the next commands wait until the front has answered this request.
    pub(super) fn wait_for_clients(&mut self, ask: ClientsAsk) {
        self.face.pending.hold.for_outcome();
        self.clients_ask = Some(ask);
    }

    /// Answers a CLIENT command that concerns only this connection; empty if the command has no reply.
    fn client_alone(
        &mut self,
        name: &str,
        arguments: &Arguments<'_>,
        shared: &mut Shared,
    ) -> Bytes {
        if let Some(answer) = self.face.settings.client(name, arguments) {
            return answer;
        }
        let id = self.face.id;
        match name {
            "CLIENT|ID" => reply::integer(self.face.shown_id()),
            "CLIENT|GETREDIR" => {
                reply::integer(Tracker::shown_redirect(shared.tracking.client(id)))
            }
            "CLIENT|TRACKINGINFO" => {
                let resp3 = self.face.protocol() == Protocol::Resp3;
                Tracker::info(shared.tracking.client(id), resp3)
            }
            "CLIENT|CACHING" => Tracker::client_caching(shared.tracking.client_mut(id), arguments),
            "CLIENT|TRACKING" => self.tracks.client_tracking(id, arguments, shared),
            "CLIENT|REPLY" => {
                let Some(replying) = self.replying.after(arguments) else {
                    return reply::error(SYNTAX);
                };
                let was_silent = self.replying.is_silent();
                self.replying = replying;
                if replying.is_silent() {
                    if !was_silent {
                        self.face.pending.replies.mute(Muted::Yes);
                    }
                    return Bytes::new();
                }
                self.face.pending.replies.mute(Muted::No);
                OK
            }
            "CLIENT|PAUSE" => match parse_pause(arguments) {
                Ok((millis, all)) => {
                    shared.pause.begin(millis, all, shared.now);
                    OK
                }
                Err(error) => error,
            },
            "CLIENT|UNPAUSE" => {
                shared.pause.end();
                OK
            }
            _ => refused(arguments),
        }
    }
}
