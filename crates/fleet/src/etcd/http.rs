//! One request to one member of etcd over HTTP, with TLS and a user if configured.
//!
//! etcd gives a user a token, and may invalidate the token at any time: after some minutes without a request, when
//! etcd's users change, or when etcd is restarted. Then this module sends the password again, within the time limit of
//! the same request. If the files of certificates have changed, this module reads the files again.

use std::io::{ErrorKind, Read};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use pmnet_tls::{ClientTls, Distrust, Flags, Stamps};
use serde_json::{Value, json};

use super::EtcdError;
use super::members::{Access, HTTPS, Login, Members};

/// Maximum length of an answer, in bytes.
const ANSWER_BYTES_MAX: u64 = 1 << 20;
/// Part of etcd's error text when etcd accepts no writes.
const FULL: &str = "database space exceeded";
/// Path of etcd's call about alarms.
pub(super) const ALARM: &str = "maintenance/alarm";

/// Longest time for a second connection, which asks for the reason why the first connection failed.
const WHY_MAX: Duration = Duration::from_millis(200);

/// Names of the flags in the error texts.
const FLAGS: Flags = Flags {
    ca: "--etcd-ca",
    certificate: "--etcd-cert and --etcd-key",
};

/// Texts with which etcd refuses a token, or a request without a token.
const WANTS_LOGIN: [&str; 3] = [
    "invalid auth token",
    "revision of auth store is old",
    "user name is empty",
];
/// Text with which etcd reports that it has no users.
const NO_USERS: &str = "authentication is not enabled";

/// Part of the error text of an etcd that has users and asks for certificates. Such an etcd refuses a certificate with
/// a common name, because it would read that name as the name of a user.
const COMMON_NAME: &str = "CommonName of client sending a request";

/// Codes of gRPC that etcd's answers contain.
const DEADLINE_EXCEEDED: i64 = 4;
const PERMISSION_DENIED: i64 = 7;
const RESOURCE_EXHAUSTED: i64 = 8;
const UNAVAILABLE: i64 = 14;

/// The token that etcd has given to this process.
enum Token {
    /// The process has no token, and must request one.
    Unknown,
    /// etcd reported that it has no users.
    Unneeded,
    Known(String),
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // A reader of the token would have all rights of the user, so the token is not printed.
        f.write_str(match self {
            Token::Unknown => "Unknown",
            Token::Unneeded => "Unneeded",
            Token::Known(_) => "Known",
        })
    }
}

/// The connections to all members.
#[derive(Debug)]
pub(super) struct Http {
    members: Members,
    timeout: Duration,
    /// State of the files when the HTTP agent was made.
    stamps: Stamps,
    /// The HTTP agent. `None`: the files have never been read successfully.
    agent: Option<ureq::Agent>,
    token: Token,
}

impl Http {
    pub(super) fn new(members: Members, timeout: Duration) -> Http {
        Http {
            members,
            timeout,
            stamps: Stamps::default(),
            agent: None,
            token: Token::Unknown,
        }
    }

    pub(super) fn urls(&self) -> &[String] {
        self.members.urls()
    }

    /// Sends a request, and logs in first if necessary.
    pub(super) fn ask(
        &mut self,
        endpoint: &str,
        path: &str,
        question: &Value,
    ) -> Result<Value, EtcdError> {
        let until = Instant::now() + self.timeout;
        self.renew(endpoint)?;
        if matches!(self.token, Token::Unknown) {
            self.log_in(endpoint, until)?;
        }
        match self.post(endpoint, path, question, until) {
            Err(EtcdError::Refused(_, text)) if wants_login(&text) => {
                self.log_in(endpoint, until)?;
                self.post(endpoint, path, question, until)
            }
            answer => answer,
        }
    }

    /// Returns the text at a URL that requires no login; `None`: the text is not available.
    pub(super) fn text(&mut self, url: &str) -> Option<String> {
        let mut answer = self.agent.as_ref()?.get(url).call().ok()?;
        let body = answer.body_mut().with_config().limit(ANSWER_BYTES_MAX);
        body.read_to_string().ok()
    }

    /// Makes the HTTP agent if there is none, or if the files have changed. If the new files cannot be used, keeps the
    /// previous agent.
    fn renew(&mut self, endpoint: &str) -> Result<(), EtcdError> {
        let stamps = if self.members.is_tls() {
            Stamps::of(self.members.access.files())
        } else {
            Stamps::default()
        };
        if self.agent.is_some() && stamps == self.stamps {
            return Ok(());
        }
        self.stamps = stamps;
        match (agent(&self.members, self.timeout), &self.agent) {
            (Ok(agent), _) => self.agent = Some(agent),
            (Err(why), Some(_)) => {
                tracing::warn!(
                    "PM4109 certificates for etcd have changed, and cannot be used: {why}. Those that were read before are used until the files change again"
                );
            }
            (Err(why), None) => return Err(EtcdError::Distrusted(endpoint.to_owned(), why)),
        }
        Ok(())
    }

    /// If a user is configured, requests a token from etcd.
    fn log_in(&mut self, endpoint: &str, until: Instant) -> Result<(), EtcdError> {
        let Some(login) = self.members.access.login.clone() else {
            if matches!(self.token, Token::Unknown) {
                self.token = Token::Unneeded;
                return Ok(());
            }
            let why = "it has users: give one with --etcd-user and --etcd-password-file";
            return Err(EtcdError::Login(endpoint.to_owned(), why.into()));
        };
        let refused = |why: String| EtcdError::Login(endpoint.to_owned(), why);
        let Login { user, .. } = &login;
        let password = login.password().map_err(refused)?;
        self.token = Token::Unknown;
        let question = json!({ "name": user, "password": password });
        match self.post(endpoint, "auth/authenticate", &question, until) {
            Ok(answer) => {
                let token = answer["token"].as_str().unwrap_or_default().to_owned();
                self.token = Token::Known(token);
                Ok(())
            }
            Err(EtcdError::Refused(_, text)) if text.contains(NO_USERS) => {
                tracing::warn!(
                    "PM4110 --etcd-user {user}: etcd has no users (its authentication is not enabled), so everybody who reaches it may change \
                     the chain. Enable it: etcdctl auth enable"
                );
                self.token = Token::Unneeded;
                Ok(())
            }
            Err(EtcdError::Refused(_, text)) => Err(refused(format!(
                "it does not take user {user} with the password in --etcd-password-file ({text}): correct the file, or the user (etcdctl user passwd {user})"
            ))),
            Err(error) => Err(error),
        }
    }

    /// Returns why a request got no answer. In TLS 1.3 the peer may refuse a certificate while this process is still
    /// writing the request. Then the reason of the peer is lost, so this function connects once more to learn the
    /// reason.
    fn unreachable(&self, endpoint: &str, error: &ureq::Error, until: Instant) -> EtcdError {
        let distrust = match error {
            ureq::Error::Io(error) if self.members.is_tls() && is_cut_off(error.kind()) => {
                asked_why(&self.members, endpoint, until)
            }
            ureq::Error::Io(error) => Distrust::of(error),
            _ => None,
        };
        match distrust {
            Some(why) => EtcdError::Distrusted(endpoint.to_owned(), why.sentence(FLAGS)),
            None => EtcdError::Unreachable(endpoint.to_owned(), self.lost(error)),
        }
    }

    fn lost(&self, error: &ureq::Error) -> String {
        match error {
            ureq::Error::Io(io) if !self.members.is_tls() && is_cut_off(io.kind()) => {
                format!("{io} (if it speaks TLS: write https://)")
            }
            error => error.to_string(),
        }
    }

    fn post(
        &self,
        endpoint: &str,
        path: &str,
        question: &Value,
        until: Instant,
    ) -> Result<Value, EtcdError> {
        let lost = |error: ureq::Error| self.unreachable(endpoint, &error, until);
        let Some(agent) = &self.agent else {
            return Err(lost(ureq::Error::ConnectionFailed));
        };
        let left = until.saturating_duration_since(Instant::now());
        let mut request = agent
            .post(format!("{endpoint}/v3/{path}"))
            .header("content-type", "application/json")
            .config()
            .timeout_global(Some(left))
            .build();
        if let Token::Known(token) = &self.token {
            request = request.header("authorization", token);
        }
        let mut answer = request.send(question.to_string()).map_err(lost)?;
        let body = answer.body_mut().with_config().limit(ANSWER_BYTES_MAX);
        let body = body.read_to_string().map_err(lost)?;
        let mut json: Value = serde_json::from_str(&body).map_err(|_| no_json(endpoint, &body))?;
        if json["result"].is_object() {
            // etcd's answer is one element of a stream.
            json = json["result"].take();
        }
        if let Some(text) = json["error"].as_str() {
            return Err(refusal(endpoint, json["code"].as_i64(), text));
        }
        // If there is no alarm, etcd 3.4 answers with an empty object.
        let says_nothing = path == ALARM && json.is_object();
        if !answer.status().is_success() || !(json["header"].is_object() || says_nothing) {
            return Err(EtcdError::Foreign(endpoint.to_owned(), "no header"));
        }
        Ok(json)
    }
}

/// Makes one more connection, sends no request, and reads why the peer closes the connection.
fn asked_why(members: &Members, endpoint: &str, until: Instant) -> Option<Distrust> {
    let (name, port) = endpoint.strip_prefix(HTTPS)?.rsplit_once(':')?;
    let name = name.trim_matches(['[', ']']);
    let at = (name, port.parse().ok()?).to_socket_addrs().ok()?.next()?;
    let within = until
        .saturating_duration_since(Instant::now())
        .min(WHY_MAX)
        .max(Duration::from_millis(1));
    let socket = TcpStream::connect_timeout(&at, within).ok()?;
    socket.set_read_timeout(Some(within)).ok()?;
    socket.set_write_timeout(Some(within)).ok()?;
    let Access { ca, identity, .. } = &members.access;
    let identity = identity.as_ref();
    let identity = identity.map(|(cert, key)| (cert.as_path(), key.as_path()));
    let tls = ClientTls::new(name, ca.as_deref(), identity).ok()?;
    let mut stream = tls.connect(socket).ok()?;
    let mut listen = || -> std::io::Result<()> {
        while stream.is_handshaking() {
            stream.shake_hands()?;
        }
        stream.read(&mut [0]).map(|_| ())
    };
    listen().err().as_ref().and_then(Distrust::of)
}

fn agent(members: &Members, timeout: Duration) -> Result<ureq::Agent, String> {
    let mut config = ureq::Agent::config_builder()
        .timeout_global(Some(timeout))
        .http_status_as_error(false)
        .max_redirects(0)
        .proxy(None);
    if members.is_tls() {
        config = config.tls_config(members.access.tls()?);
    }
    Ok(config.build().new_agent())
}

const fn is_cut_off(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::BrokenPipe
            | ErrorKind::ConnectionReset
            | ErrorKind::ConnectionAborted
            | ErrorKind::UnexpectedEof
    )
}

fn wants_login(text: &str) -> bool {
    WANTS_LOGIN.iter().any(|part| text.contains(part))
}

/// Converts etcd's refusal to an error.
fn refusal(endpoint: &str, code: Option<i64>, text: &str) -> EtcdError {
    let (endpoint, text) = (endpoint.to_owned(), text.to_owned());
    match code {
        // The request may succeed at another member.
        Some(DEADLINE_EXCEEDED | UNAVAILABLE) => EtcdError::Unreachable(endpoint, text),
        Some(RESOURCE_EXHAUSTED) if text.contains(FULL) => EtcdError::Full(endpoint),
        Some(PERMISSION_DENIED) => EtcdError::Forbidden(endpoint),
        _ => EtcdError::Refused(endpoint, text),
    }
}

/// Returns the error for an answer that is not JSON.
fn no_json(endpoint: &str, body: &str) -> EtcdError {
    let endpoint = endpoint.to_owned();
    if body.contains(COMMON_NAME) {
        let why = "it has users, and does not take a certificate with a common name (CN) beside a user: give one without CN, with --etcd-cert";
        return EtcdError::Login(endpoint, why.into());
    }
    let speaks_tls = body.contains("HTTP request to an HTTPS server");
    let why = if speaks_tls {
        "it speaks TLS: write https://"
    } else {
        "no JSON"
    };
    EtcdError::Foreign(endpoint, why)
}
