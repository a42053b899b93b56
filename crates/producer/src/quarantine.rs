//! Submissions that no producer can receive.
//!
//! The server stores whatever header bytes a publisher sends; the client library does not read all
//! of them. Bytes that are not UTF-8 or a header name with a space in it cost the connection, and
//! a lone carriage return in a value ends the client for good. (A status line would make a message
//! look like a word of the server's, but the server does not store it.) Each such submission would
//! do that to one producer after the other until its deliveries are used up, and then stay for
//! ever.
//!
//! So after each connection, and now and then, a producer looks at what was delivered and is still
//! in the stream. It asks for the messages in a form that is safe to receive (JSON, headers in
//! base64), and what cannot be received is buried and deleted. That takes no agreement between
//! producers: nobody can be at work on such a message, and its letter has one id.

use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};

use async_nats::{HeaderName, HeaderValue};
use bytes::Bytes;
use fairlane_wire::letter::{DeadReason, Failure};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::producer::Producer;
use crate::trouble::Trouble;

/// "There is no such message."
const NO_MESSAGE: u64 = 10_037;

/// What is known of the submit stream so far.
#[derive(Debug, Default)]
pub(crate) struct Quarantine {
    /// Everything up to this sequence was looked at.
    checked: AtomicU64,
}

/// A submission that was delivered and not acknowledged.
#[derive(Debug)]
pub(crate) struct Stranded {
    pub(crate) subject: String,
    pub(crate) seq: u64,
    pub(crate) stored_ms: u64,
    pub(crate) body: Bytes,
    pub(crate) headers: Bytes,
}

impl Quarantine {
    /// Looks at everything that was delivered since the last time; returns how many submissions
    /// were buried. May run several times at once.
    pub(crate) async fn sweep(&self, producer: &Producer) -> Result<usize, Trouble> {
        let delivered = delivered(producer).await?;
        let mut checked = self.checked.load(Ordering::Relaxed);
        if checked > delivered {
            // The stream was made anew and counts from one again.
            checked = 0;
        }
        let mut buried = 0;
        while let Some(message) = next(producer, checked + 1).await? {
            if message.seq > delivered {
                break;
            }
            if let Err(what) = readable(&message.headers) {
                bury(producer, &message, what).await?;
                buried += 1;
            }
            checked = message.seq;
        }
        self.checked.store(delivered, Ordering::Relaxed);
        Ok(buried)
    }
}

async fn bury(producer: &Producer, message: &Stranded, what: &str) -> Result<(), Trouble> {
    let failure = Failure::new(
        DeadReason::Undecodable,
        format!("the headers of the message cannot be read: {what}"),
    )
    .detail("headers")
    .field("headers")
    .fix("give header names in plain ASCII without spaces, and values of one line in UTF-8");
    producer.bury_unreadable(message, failure).await?;
    let nats = producer.nats();
    let stream = nats.names.submit_stream();
    Ok(nats.jobs().delete(&stream, message.seq).await?)
}

/// Sequence up to which the consumer has delivered.
async fn delivered(producer: &Producer) -> Result<u64, Trouble> {
    #[derive(Deserialize)]
    struct Info {
        delivered: Position,
    }
    #[derive(Deserialize)]
    struct Position {
        stream_seq: u64,
    }

    let names = &producer.nats().names;
    let (stream, consumer) = (names.submit_stream(), names.producer_consumer());
    let info: Option<Info> = call(
        producer,
        &format!("CONSUMER.INFO.{stream}.{consumer}"),
        &Value::Null,
    )
    .await?;
    info.map(|info| info.delivered.stream_seq)
        .ok_or_else(|| Trouble::Call("no message found".to_owned()))
}

/// The first submission at or after `seq`.
pub(crate) async fn next(producer: &Producer, seq: u64) -> Result<Option<Stranded>, Trouble> {
    #[derive(Deserialize)]
    struct Reply {
        message: Message,
    }
    #[derive(Deserialize)]
    struct Message {
        subject: String,
        seq: u64,
        #[serde(default)]
        hdrs: String,
        #[serde(default)]
        data: String,
        time: jiff::Timestamp,
    }

    let names = &producer.nats().names;
    let body = json!({"seq": seq, "next_by_subj": names.submit_filter()});
    let reply: Option<Reply> = call(
        producer,
        &format!("STREAM.MSG.GET.{}", names.submit_stream()),
        &body,
    )
    .await?;
    let Some(Reply { message }) = reply else {
        return Ok(None);
    };
    let decode = |text: &str| {
        base64(text).ok_or_else(|| Trouble::Call(format!("message {}: base64", message.seq)))
    };
    Ok(Some(Stranded {
        headers: decode(&message.hdrs)?,
        body: decode(&message.data)?,
        subject: message.subject,
        seq: message.seq,
        stored_ms: u64::try_from(message.time.as_millisecond()).unwrap_or(0),
    }))
}

/// A call of the JetStream API; None if there is no such message.
pub(crate) async fn call<T: DeserializeOwned>(
    producer: &Producer,
    call: &str,
    body: &Value,
) -> Result<Option<T>, Trouble> {
    let failed = |text: String| Trouble::Call(format!("{call}: {text}"));
    let body = if body.is_null() {
        Bytes::new()
    } else {
        body.to_string().into()
    };
    let client = &producer.nats().client;
    let reply = client.request(format!("$JS.API.{call}"), body).await;
    let reply = reply.map_err(|error| failed(error.to_string()))?;
    let value: Value =
        serde_json::from_slice(&reply.payload).map_err(|error| failed(error.to_string()))?;
    match value.get("error") {
        Some(error) if error.get("err_code").and_then(Value::as_u64) == Some(NO_MESSAGE) => {
            Ok(None)
        }
        Some(error) => Err(failed(error.to_string())),
        None => serde_json::from_value(value)
            .map(Some)
            .map_err(|error| failed(error.to_string())),
    }
}

/// Whether the client library takes this header block, and as a plain message. Exactly as it
/// reads: a message that some producer may be at work on must not be buried.
pub(crate) fn readable(block: &[u8]) -> Result<(), &'static str> {
    if block.is_empty() {
        return Ok(());
    }
    let text = std::str::from_utf8(block).map_err(|_| "they are not UTF-8")?;
    let mut lines = text.lines().peekable();
    let version = lines.next().and_then(|line| line.strip_prefix("NATS/1.0"));
    let status = version.ok_or("the first line is not NATS/1.0")?.trim();
    if !matches!(status.split(' ').next(), Some("" | "200")) {
        return Err("the first line has a status, which is the server's to give");
    }
    while let Some(line) = lines.next() {
        if line.is_empty() {
            continue;
        }
        let (name, value) = line.split_once(':').ok_or("a line has no colon")?;
        HeaderName::from_str(name)
            .map_err(|_| "a name has a space, a control character or a letter beyond ASCII")?;
        let mut value = value.trim_start().to_owned();
        while let Some(more) = lines.next_if(|line| line.starts_with(char::is_whitespace)) {
            value.push_str(more);
        }
        HeaderValue::from_str(value.trim_end()).map_err(|_| "a value has a carriage return")?;
    }
    Ok(())
}

/// Decodes base64 with padding, as the server writes it.
fn base64(text: &str) -> Option<Bytes> {
    let text = text.as_bytes();
    let digits = text.strip_suffix(b"==").or(text.strip_suffix(b"="));
    let digits = digits.unwrap_or(text);
    if !text.len().is_multiple_of(4) {
        return None;
    }
    let mut bytes = Vec::with_capacity(digits.len() * 3 / 4);
    for group in digits.chunks(4) {
        let mut bits = 0_u32;
        for digit in group {
            bits = bits << 6 | value_of(*digit)?;
        }
        let [_, one, two, three] = (bits << (24 - 6 * group.len())).to_be_bytes();
        bytes.extend_from_slice(&[one, two, three][..group.len() - 1]);
    }
    Some(bytes.into())
}

fn value_of(digit: u8) -> Option<u32> {
    Some(match digit {
        b'A'..=b'Z' => u32::from(digit - b'A'),
        b'a'..=b'z' => u32::from(digit - b'a') + 26,
        b'0'..=b'9' => u32::from(digit - b'0') + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_of_every_length_is_decoded() {
        for (text, bytes) in [
            ("", &b""[..]),
            ("Zg==", b"f"),
            ("Zm8=", b"fo"),
            ("Zm9v", b"foo"),
            ("Zm9vYg==", b"foob"),
            ("+/8A", b"\xfb\xff\0"),
        ] {
            assert_eq!(base64(text).as_deref(), Some(bytes), "{text}");
        }
        for wrong in ["Z", "Zg", "Zg=", "Zm9!", "Zm9v="] {
            assert_eq!(base64(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn headers_that_hurt_the_client_are_told_from_others() {
        let harmless: [&[u8]; 9] = [
            b"",
            b"NATS/1.0\r\n\r\n",
            b"NATS/1.0\r\nA: 1\r\nB:2\r\n\r\n",
            b"NATS/1.0\r\nA: m\xc3\xbcde\r\n\r\n",
            b"NATS/1.0\r\nA: 1\r\n  and more\r\n\r\n",
            b"NATS/1.0\nA: 1\n\n",
            b"NATS/1.0\r\n: no name\r\n\r\n",
            b"NATS/1.0 200 OK\r\nA: 1\r\r\n\r\n",
            b"NATS/1.0\r\nA: \r1\r\n\r\n",
        ];
        for block in harmless {
            assert_eq!(
                readable(block),
                Ok(()),
                "{:?}",
                block.escape_ascii().to_string()
            );
        }
        let harmful: [&[u8]; 11] = [
            b"NATS/1.0 503\r\n\r\n",
            b"NATS/1.0 x\r\nA: 1\r\n\r\n",
            b"HTTP/1.1\r\nA: 1\r\n\r\n",
            b"NATS/1.0\r\nA: \xff\r\n\r\n",
            b"NATS/1.0\r\nA B: 1\r\n\r\n",
            b"NATS/1.0\r\nm\xc3\xbcde: 1\r\n\r\n",
            b"NATS/1.0\r\nA: 1\r2\r\n\r\n",
            b"NATS/1.0\r\nno colon\r\n\r\n",
            b"NATS/1.0\r\n A: 1\r\n\r\n",
            b"NATS/1.0\r\nA: 1\r\n\r\n B: 2\r\n\r\n",
            b"NATS/1.0\r\nA: 1\r\n 2\r3\r\n\r\n",
        ];
        for block in harmful {
            assert!(
                readable(block).is_err(),
                "{:?}",
                block.escape_ascii().to_string()
            );
        }
    }
}
