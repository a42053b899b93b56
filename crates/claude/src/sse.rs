//! Server-sent events: bytes in, events out, no IO.
//!
//! Chunks may be cut anywhere, also inside a character or between the two bytes of a line end. Lines end
//! with LF, CR LF or CR. An event that the stream's end cuts off is dropped, as the format demands.

/// One event: its name and the lines of its data, joined by newlines.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Event {
    /// The `event` field; empty when there was none.
    pub name: String,
    pub data: String,
}

/// An event grew larger than allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("event of more than {bytes_max} bytes in the stream; nothing the API sends is that large")]
pub struct TooLarge {
    pub bytes_max: usize,
}

/// The state of one stream between chunks.
#[derive(Debug)]
pub struct Parser {
    bytes_max: usize,
    /// The line that has begun.
    line: Vec<u8>,
    /// The last byte was a CR that ended a line: an LF now belongs to it.
    after_cr: bool,
    first_line: bool,
    name: String,
    data: Vec<u8>,
    has_data: bool,
}

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

impl Parser {
    /// A parser that refuses events of more than `bytes_max` bytes.
    #[must_use]
    pub fn new(bytes_max: usize) -> Self {
        Self {
            bytes_max,
            line: Vec::new(),
            after_cr: false,
            first_line: true,
            name: String::new(),
            data: Vec::new(),
            has_data: false,
        }
    }

    /// Takes the next chunk and appends the events it completes to `events`.
    ///
    /// # Errors
    /// [`TooLarge`]; the parser is of no use afterwards.
    pub fn feed(&mut self, mut chunk: &[u8], events: &mut Vec<Event>) -> Result<(), TooLarge> {
        if self.after_cr && !chunk.is_empty() {
            self.after_cr = false;
            chunk = chunk.strip_prefix(b"\n").unwrap_or(chunk);
        }
        while let Some(end) = chunk
            .iter()
            .position(|&byte| byte == b'\n' || byte == b'\r')
        {
            let (part, rest) = chunk.split_at(end);
            self.extend_line(part)?;
            chunk = match rest {
                [b'\r', b'\n', rest @ ..] | [b'\n', rest @ ..] => rest,
                [_, rest @ ..] => {
                    self.after_cr = rest.is_empty();
                    rest
                }
                [] => rest,
            };
            let line = std::mem::take(&mut self.line);
            self.take_line(&line, events);
            // Kept for the next line, so that a stream does not allocate for each.
            self.line = line;
            self.line.clear();
        }
        self.extend_line(chunk)
    }

    fn extend_line(&mut self, part: &[u8]) -> Result<(), TooLarge> {
        if self.line.len() + self.data.len() + part.len() > self.bytes_max {
            return Err(TooLarge {
                bytes_max: self.bytes_max,
            });
        }
        self.line.extend_from_slice(part);
        Ok(())
    }

    fn take_line(&mut self, mut line: &[u8], events: &mut Vec<Event>) {
        if std::mem::take(&mut self.first_line) {
            line = line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line);
        }
        if line.is_empty() {
            self.dispatch(events);
            return;
        }
        let (field, value) = match line.iter().position(|&byte| byte == b':') {
            // A comment, often only to keep the connection alive.
            Some(0) => return,
            Some(colon) => {
                let value = &line[colon + 1..];
                (&line[..colon], value.strip_prefix(b" ").unwrap_or(value))
            }
            None => (line, &b""[..]),
        };
        match field {
            b"event" => self.name = String::from_utf8_lossy(value).into_owned(),
            b"data" => {
                if self.has_data {
                    self.data.push(b'\n');
                }
                self.has_data = true;
                self.data.extend_from_slice(value);
            }
            // `id` and `retry` are for clients that reconnect; the rest is for later versions.
            _ => {}
        }
    }

    fn dispatch(&mut self, events: &mut Vec<Event>) {
        let name = std::mem::take(&mut self.name);
        if std::mem::take(&mut self.has_data) {
            let data = String::from_utf8_lossy(&self.data).into_owned();
            events.push(Event { name, data });
        }
        self.data.clear();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(chunks: &[&[u8]]) -> Vec<Event> {
        let mut parser = Parser::new(1_000);
        let mut events = Vec::new();
        for chunk in chunks {
            parser.feed(chunk, &mut events).unwrap();
        }
        events
    }

    fn event(name: &str, data: &str) -> Event {
        Event {
            name: name.into(),
            data: data.into(),
        }
    }

    #[test]
    fn events_have_a_name_and_joined_data() {
        let text =
            b"event: a\ndata: 1\ndata:2\n\ndata: 3\n\nevent: no data\n\n: comment\nid: 7\ndata\n\n";
        assert_eq!(
            parse(&[text]),
            [event("a", "1\n2"), event("", "3"), event("", "")]
        );
    }

    #[test]
    fn all_line_ends_are_the_same() {
        for end in ["\n", "\r\n", "\r"] {
            let text = format!("event: a{end}data: x{end}{end}data: y{end}{end}");
            assert_eq!(
                parse(&[text.as_bytes()]),
                [event("a", "x"), event("", "y")],
                "{end:?}"
            );
        }
    }

    #[test]
    fn a_line_end_cut_in_two_is_one_line_end() {
        assert_eq!(
            parse(&[b"data: a\r", b"\ndata: b\r", b"\n\r", b"\n"]),
            [event("", "a\nb")]
        );
        assert_eq!(
            parse(&[b"data: a\r", b"\r", b"", b"\ndata: b\n\n"]),
            [event("", "a"), event("", "b")]
        );
    }

    #[test]
    fn a_character_cut_in_two_survives() {
        let text = "data: 静かな é 🦀\n\n".as_bytes();
        for cut in 0..text.len() {
            assert_eq!(
                parse(&[&text[..cut], &text[cut..]]),
                [event("", "静かな é 🦀")],
                "{cut}"
            );
        }
    }

    #[test]
    fn a_mark_at_the_start_and_an_event_cut_off_at_the_end_are_dropped() {
        assert_eq!(
            parse(&[b"\xef\xbb\xbfdata: a\n\ndata: lost\n"]),
            [event("", "a")]
        );
    }

    #[test]
    fn a_huge_event_is_refused_whether_in_one_line_or_many() {
        let mut events = Vec::new();
        let mut parser = Parser::new(100);
        assert!(parser.feed(&[b'x'; 101], &mut events).is_err());
        let mut parser = Parser::new(100);
        let fed = (0..20).try_for_each(|_| parser.feed(b"data: 1234567890\n", &mut events));
        assert!(fed.is_err());
        let mut parser = Parser::new(100);
        let fed = (0..20).try_for_each(|_| parser.feed(b"data: 1234567890\n\n", &mut events));
        assert_eq!(
            (fed, events.len()),
            (Ok(()), 20),
            "the bound is for each event"
        );
    }

    proptest! {
        #[test]
        fn chunks_do_not_matter(
            text in "(event: [a-c]\n|data: [é静a]{0,9}\n|: c\n|\r\n|\r|\n|x\n){0,40}",
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
        ) {
            let bytes = text.as_bytes();
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let chunks: Vec<&[u8]> = cuts.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect();
            prop_assert_eq!(parse(&chunks), parse(&[bytes]));
        }

        #[test]
        fn any_bytes_are_read_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..500)) {
            let mut events = Vec::new();
            let fed = Parser::new(50).feed(&bytes, &mut events);
            prop_assert!(fed.is_ok() || bytes.len() > 50);
            prop_assert!(events.iter().all(|event| event.data.chars().count() <= 50));
        }
    }
}
