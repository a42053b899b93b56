//! Lines of a file of any size, one at a time, each of bounded length.

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncBufRead, AsyncBufReadExt};

/// What Windows editors put in front of a file.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// One line, without its end (`\n` or `\r\n`).
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Line {
    /// Counts from 1, blank lines included.
    pub(crate) number: u64,
    pub(crate) content: Content,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Content {
    Text(Bytes),
    /// More than the bound; this many bytes were skipped.
    TooLong(u64),
}

/// Reads lines of at most `bytes_max` bytes.
#[derive(Debug)]
pub(crate) struct Lines<R> {
    reader: R,
    bytes_max: usize,
    number: u64,
    /// The line so far, up to the bound, and its whole length.
    part: BytesMut,
    length: u64,
}

impl<R: AsyncBufRead + Unpin> Lines<R> {
    pub(crate) fn new(reader: R, bytes_max: usize) -> Self {
        Self {
            reader,
            bytes_max,
            number: 0,
            part: BytesMut::new(),
            length: 0,
        }
    }

    /// The next line, None at the end. The last line needs no line end. Dropping the future loses nothing.
    pub(crate) async fn next(&mut self) -> std::io::Result<Option<Line>> {
        loop {
            let chunk = self.reader.fill_buf().await?;
            if chunk.is_empty() {
                return Ok((self.length > 0).then(|| self.finish()));
            }
            let end = chunk.iter().position(|&byte| byte == b'\n');
            let piece = &chunk[..end.unwrap_or(chunk.len())];
            // A carriage return may still be cut off, so one byte more than the bound is kept.
            let room = (self.bytes_max + 1).saturating_sub(self.part.len());
            self.part.extend_from_slice(&piece[..piece.len().min(room)]);
            self.length += piece.len() as u64;
            let used = piece.len() + usize::from(end.is_some());
            self.reader.consume(used);
            if end.is_some() {
                return Ok(Some(self.finish()));
            }
        }
    }

    fn finish(&mut self) -> Line {
        self.number += 1;
        let is_complete = self.length == self.part.len() as u64;
        let length = std::mem::take(&mut self.length);
        let mut text = std::mem::take(&mut self.part);
        if is_complete && text.ends_with(b"\r") {
            text.truncate(text.len() - 1);
        }
        let mut text = text.freeze();
        if self.number == 1 && text.starts_with(BYTE_ORDER_MARK) {
            text = text.slice(BYTE_ORDER_MARK.len()..);
        }
        let content = if is_complete && text.len() <= self.bytes_max {
            Content::Text(text)
        } else {
            Content::TooLong(length)
        };
        Line {
            number: self.number,
            content,
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::BufReader;

    use super::*;

    /// All lines of `text`, read through a buffer of `buffer` bytes. Lines over 8 bytes are too long.
    async fn read(text: &[u8], buffer: usize) -> Vec<(u64, String)> {
        let mut lines = Lines::new(BufReader::with_capacity(buffer, text), 8);
        let mut found = Vec::new();
        while let Some(line) = lines.next().await.unwrap() {
            let content = match line.content {
                Content::Text(bytes) => String::from_utf8(bytes.to_vec()).unwrap(),
                Content::TooLong(length) => format!("<{length}>"),
            };
            found.push((line.number, content));
        }
        found
    }

    #[tokio::test]
    async fn lines_are_the_same_through_buffers_of_any_size() {
        let text = b"one\r\n\ntwo\n\r\n12345678\r\n123456789\n12345678901234567890\r\nlast";
        let expected: Vec<(u64, String)> =
            ["one", "", "two", "", "12345678", "<9>", "<21>", "last"]
                .iter()
                .zip(1..)
                .map(|(line, number)| (number, (*line).to_owned()))
                .collect();
        for buffer in [1, 2, 3, 7, 1024] {
            assert_eq!(read(text, buffer).await, expected, "buffer {buffer}");
        }
    }

    #[tokio::test]
    async fn an_empty_file_has_no_line_and_a_final_line_end_begins_none() {
        assert_eq!(read(b"", 4).await, []);
        assert_eq!(read(b"a\n", 4).await, [(1, "a".to_owned())]);
    }

    #[tokio::test]
    async fn a_byte_order_mark_is_no_part_of_the_first_line() {
        let found = read(b"\xef\xbb\xbfa\n\xef\xbb\xbfb", 4).await;
        assert_eq!(found, [(1, "a".to_owned()), (2, "\u{feff}b".to_owned())]);
    }

    #[tokio::test]
    async fn a_giant_line_is_not_kept_in_memory() {
        let text = vec![b'x'; 10_000_000];
        let mut lines = Lines::new(BufReader::new(&text[..]), 1_000);
        let line = lines.next().await.unwrap().unwrap();
        assert_eq!(line.content, Content::TooLong(10_000_000));
        assert!(lines.part.capacity() < 10_000);
    }

    #[tokio::test]
    async fn a_line_survives_the_loss_of_a_race() {
        let (mut writer, reader) = tokio::io::duplex(64);
        let mut lines = Lines::new(BufReader::new(reader), 8);
        tokio::io::AsyncWriteExt::write_all(&mut writer, b"ab")
            .await
            .unwrap();
        tokio::select! {
            biased;
            _ = lines.next() => panic!("the line has no end yet"),
            () = tokio::task::yield_now() => {}
        }
        tokio::io::AsyncWriteExt::write_all(&mut writer, b"c\n")
            .await
            .unwrap();
        let line = lines.next().await.unwrap().unwrap();
        assert_eq!(line.content, Content::Text("abc".into()));
    }
}
