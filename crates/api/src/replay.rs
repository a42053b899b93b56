//! A finished message told as if it were being written. No IO.

use serde_json::{Map, Value, json};

/// An event as it goes over the wire.
pub(crate) fn event(name: &str, data: &Value) -> String {
    format!("event: {name}\ndata: {data}\n\n")
}

/// All events of `message`, `message_stop` included.
pub(crate) fn events(message: &Value) -> String {
    let mut started = message.clone();
    started["content"] = json!([]);
    started["stop_reason"] = Value::Null;
    started["stop_sequence"] = Value::Null;
    let mut text = event(
        "message_start",
        &json!({"type": "message_start", "message": started}),
    );
    let blocks = message["content"].as_array().map_or(&[][..], Vec::as_slice);
    for (index, block) in blocks.iter().enumerate() {
        text += &block_events(index, block);
    }
    let delta = json!({
        "type": "message_delta",
        "delta": {"stop_reason": message["stop_reason"], "stop_sequence": message["stop_sequence"]},
        "usage": message["usage"],
    });
    text += &event("message_delta", &delta);
    text + &stop()
}

/// The end of every stream that ends well.
pub(crate) fn stop() -> String {
    event("message_stop", &json!({"type": "message_stop"}))
}

fn block_events(index: usize, block: &Value) -> String {
    let (start, deltas) = parts(block);
    let start = json!({"type": "content_block_start", "index": index, "content_block": start});
    let mut text = event("content_block_start", &start);
    for delta in deltas {
        let delta = json!({"type": "content_block_delta", "index": index, "delta": delta});
        text += &event("content_block_delta", &delta);
    }
    let stop = json!({"type": "content_block_stop", "index": index});
    text + &event("content_block_stop", &stop)
}

/// A block as it begins, and what is added to it.
fn parts(block: &Value) -> (Value, Vec<Value>) {
    let mut start = block.clone();
    let mut deltas = Vec::new();
    let mut move_out = |start: &mut Value, field: &str, empty: Value, kind: &str, name: &str| {
        if let Some(value) = start.get_mut(field).filter(|value| !value.is_null()) {
            let value = std::mem::replace(value, empty);
            deltas.push(Value::Object(Map::from_iter([
                ("type".to_owned(), kind.into()),
                (name.to_owned(), value),
            ])));
        }
    };
    match block["type"].as_str() {
        Some("text") => move_out(&mut start, "text", json!(""), "text_delta", "text"),
        Some("thinking") => {
            move_out(
                &mut start,
                "thinking",
                json!(""),
                "thinking_delta",
                "thinking",
            );
            move_out(
                &mut start,
                "signature",
                json!(""),
                "signature_delta",
                "signature",
            );
        }
        Some("tool_use" | "server_tool_use") => {
            let input = block["input"].to_string();
            start["input"] = json!({});
            deltas.push(json!({"type": "input_json_delta", "partial_json": input}));
        }
        // Other blocks come whole.
        Some(_) | None => {}
    }
    (start, deltas)
}

#[cfg(test)]
mod tests {
    use fairlane_claude::assemble::Assembler;
    use fairlane_claude::sse::Parser;

    use super::*;

    #[test]
    fn what_is_told_is_put_together_to_the_same_message() {
        let message = json!({
            "id": "msg_1", "type": "message", "role": "assistant", "model": "claude-haiku-4-5",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "c2ln"},
                {"type": "text", "text": "two\nlines"},
                {"type": "tool_use", "id": "toolu_1", "name": "find", "input": {"q": "a\"b"}},
                {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": []},
            ],
            "stop_reason": "tool_use", "stop_sequence": null,
            "usage": {"input_tokens": 3, "output_tokens": 5},
        });
        let mut events = Vec::new();
        Parser::new(1 << 20)
            .feed(super::events(&message).as_bytes(), &mut events)
            .unwrap();
        let mut assembler = Assembler::new(1 << 20);
        for event in &events {
            assembler.apply(event).unwrap();
        }
        let finished = assembler.finish().unwrap().expect("it was stopped");
        assert_eq!(finished.message, message);
        let names: Vec<&str> = events.iter().map(|event| event.name.as_str()).collect();
        assert_eq!(names.first(), Some(&"message_start"));
        assert_eq!(&names[names.len() - 2..], ["message_delta", "message_stop"]);
    }
}
