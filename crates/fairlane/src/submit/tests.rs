use fairlane_wire::DeadReason;

use super::*;

fn line(number: u64, text: &str) -> Line {
    Line {
        number,
        content: Content::Text(text.to_owned().into()),
    }
}

#[test]
fn a_line_is_skipped_refused_or_published() {
    let mut book = Book::new(true, false);
    assert_eq!(sort(line(1, "  \r"), None, &mut book), None);
    assert_eq!(sort(line(2, "no JSON"), None, &mut book), None);
    let parcel = sort(line(3, r#"{"tenant":"acme","id":"j1"}"#), None, &mut book).unwrap();
    assert_eq!(&parcel.body[..], br#"{"tenant":"acme","id":"j1"}"#);
    let giant = Line {
        number: 4,
        content: Content::TooLong(70_000_000),
    };
    assert_eq!(sort(giant, None, &mut book), None);
    assert_eq!((book.lines, book.skipped, book.refused), (4, 1, 2));
    assert_eq!(book.findings.kept[&4].reason, Some(DeadReason::Oversize));
}

#[test]
fn how_it_ended_decides_the_exit_code() {
    let summary = Summary::of(&Book::new(true, false), 1);
    let codes = [
        Ended::Complete,
        Ended::TimedOut,
        Ended::Interrupted,
        Ended::CutOff,
    ]
    .map(|ended| exit(&summary, ended).code());
    assert_eq!(codes, [0, 1, 130, 5]);
}
