//! Ids of messages. An id is `PM` and four digits, at the beginning of the message. Each id has an entry in
//! `docs/operate/messages.md`.
//!
//! In the source, an id is a part of the message's text. So the id stays with the text even if the text is passed to
//! another process, or is wrapped into another sentence. In JSON logs the id is also a field of its own.

use std::fmt;

use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// The letters with which an id begins.
const MARK: &str = "PM";
/// Length of an id, in bytes.
const ID_BYTES: usize = 6;

/// Returns the first id in a text.
pub(crate) fn id(text: &str) -> Option<&str> {
    text.match_indices(MARK).find_map(|(at, _)| {
        let found = text.get(at..at + ID_BYTES)?;
        let is_word = |char: Option<char>| char.is_some_and(|char| char.is_ascii_alphanumeric());
        let stands_alone = !is_word(text[..at].chars().next_back())
            && !is_word(text[at + ID_BYTES..].chars().next());
        let digits = &found[MARK.len()..];
        (stands_alone && digits.bytes().all(|byte| byte.is_ascii_digit())).then_some(found)
    })
}

/// The ids that were found in an event. The id in the message takes precedence; otherwise the id in another field
/// counts.
#[derive(Default)]
struct Ids {
    of_sentence: Option<String>,
    of_field: Option<String>,
}

impl Visit for Ids {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let text = format!("{value:?}");
        let Some(found) = id(&text) else { return };
        let place = if field.name() == "message" {
            &mut self.of_sentence
        } else {
            &mut self.of_field
        };
        place.get_or_insert_with(|| found.to_owned());
    }
}

/// Adds the field `id` to a log line that the inner format has written as a JSON object.
pub(crate) struct WithId<F>(pub F);

impl<S, N, F> FormatEvent<S, N> for WithId<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut ids = Ids::default();
        event.record(&mut ids);
        let Some(id) = ids.of_sentence.or(ids.of_field) else {
            return self.0.format_event(context, writer, event);
        };
        let mut line = String::new();
        self.0
            .format_event(context, Writer::new(&mut line), event)?;
        let rest = line.strip_prefix('{').unwrap_or(&line);
        write!(writer, "{{\"id\":\"{id}\",{rest}")
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    use super::*;

    #[test]
    fn an_id_is_found_where_a_sentence_has_one() {
        for (text, found) in [
            ("PM1203 this is not a log", Some("PM1203")),
            ("waiting: PM1101 the path", Some("PM1101")),
            ("a PM2201", Some("PM2201")),
            ("PM12 PM12034 APM1203 pm1203 PM12x4 PM", None),
            ("PM120\u{e9}", None),
            ("", None),
        ] {
            assert_eq!(id(text), found, "{text}");
        }
    }

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(line);
            Ok(line.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_of_json_has_the_id_as_a_field() {
        let lines = Lines::default();
        let to = lines.clone();
        let logs = tracing_subscriber::fmt()
            .json()
            .map_event_format(WithId)
            .with_writer(move || to.clone())
            .finish();
        tracing::subscriber::with_default(logs, || {
            tracing::warn!(error = "PM1311 no", "PM1203 this \"is\" {}", 1);
            tracing::warn!(error = "PM1311 no", "cannot");
            tracing::info!(count = 1, "nothing");
        });
        let written = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        let begins: Vec<&str> = written.lines().map(|line| &line[..14]).collect();
        assert_eq!(
            begins,
            [
                "{\"id\":\"PM1203\"",
                "{\"id\":\"PM1311\"",
                "{\"timestamp\":\""
            ]
        );
        assert!(written.lines().all(|line| line.ends_with('}')), "{written}");
        assert!(written.contains("PM1203 this \\\"is\\\" 1"), "{written}");
    }
}
