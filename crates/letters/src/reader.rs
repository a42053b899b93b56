//! The index, read from the stream: headers only, so that bodies stay where they are.

use fairlane_nats::{Index as Headers, IndexEvent, IndexItem, Nats};
use fairlane_wire::header;
use fairlane_wire::letter::Letter;

use crate::index::{Index, Note};

/// Headers taken at a time.
const CHUNK: usize = 1_024;

/// The header of a note.
pub(crate) const NOTE: &str = "Fl-Note";

/// Reads all letters there are.
pub async fn read(nats: &Nats) -> Index {
    let mut index = Index::default();
    let stream = nats.names.dlq_stream();
    let mut headers: Headers = nats.index(&stream, &format!("{}.>", nats.names.as_str()));
    let mut events = Vec::with_capacity(CHUNK);
    while headers.next_many(&mut events, CHUNK).await > 0 {
        for event in events.drain(..) {
            match event {
                IndexEvent::Item(item) => add(nats, &mut index, &item),
                IndexEvent::Current => return index,
                IndexEvent::Stale => {}
                IndexEvent::Reset => index = Index::default(),
            }
        }
    }
    index
}

/// Adds one message of the stream.
pub fn add(nats: &Nats, index: &mut Index, item: &IndexItem) {
    let get = |name: &str| item.headers.get(name).map(|value| value.as_str());
    if let Some(seq) = nats.names.parse_redriven_subject(&item.subject) {
        let note = get(NOTE).and_then(|note| serde_json::from_str::<Note>(note).ok());
        match note {
            Some(note) => index.note(seq, note),
            None => index.note_foreign(),
        }
        return;
    }
    match get(header::LETTER).map(Letter::from_json) {
        Some(Ok(letter)) => index.add(item.seq, letter, item.size),
        Some(Err(_)) | None => index.note_foreign(),
    }
}
