//! `fairlane init`: create what is missing on NATS, and report what differs.

use fairlane_nats::objects::{self, Report, Weight};
use serde_json::{Value, json};

use crate::cli::{Format, Globals, Output};
use crate::exit::{Exit, Outcome, Stop};
use crate::out::{print, print_json};
use crate::target::Target;

pub(crate) async fn run(globals: &Globals, output: Output) -> Outcome {
    let target = Target::load(globals)?;
    let _logs = target.quiet_logs("init")?;
    let nats = target.connect("init").await?;
    let report = objects::ensure(&nats, &target.object_options())
        .await
        .map_err(|error| Stop::new(Exit::Failed, error))?;
    match output.format {
        Format::Table => print(text(&report))?,
        Format::Json | Format::Jsonl => print_json(&document(&report))?,
    }
    Ok(exit(&report))
}

fn exit(report: &Report) -> Exit {
    if report.differences.is_empty() {
        Exit::Ok
    } else {
        Exit::Failed
    }
}

fn text(report: &Report) -> String {
    let as_wanted = report
        .unchanged
        .iter()
        .map(|name| format!("as wanted  {name}\n"));
    as_wanted.collect::<String>() + &report.to_string()
}

fn document(report: &Report) -> Value {
    let differences = report.differences.iter().map(|difference| {
        let weight = match difference.weight {
            Weight::Breaks => "breaks",
            Weight::Differs => "differs",
        };
        json!({
            "object": difference.object,
            "field": difference.field,
            "wanted": difference.wanted,
            "found": difference.found,
            "weight": weight,
        })
    });
    json!({
        "created": report.created,
        "as_wanted": report.unchanged,
        "differences": differences.collect::<Vec<_>>(),
        "broken": report.is_broken(),
    })
}

#[cfg(test)]
mod tests {
    use fairlane_nats::objects::Difference;

    use super::*;

    #[test]
    fn any_difference_fails_and_names_both_values() {
        let mut report = Report {
            created: vec!["stream FL_JOBS".to_owned()],
            unchanged: vec!["bucket fl_status".to_owned()],
            differences: Vec::new(),
        };
        assert_eq!(exit(&report), Exit::Ok);
        report.differences.push(Difference {
            object: "stream FL_DLQ".to_owned(),
            field: "max_age".to_owned(),
            wanted: "1".to_owned(),
            found: "2".to_owned(),
            weight: Weight::Differs,
        });
        assert_eq!(exit(&report), Exit::Failed);
        assert_eq!(
            text(&report),
            "as wanted  bucket fl_status\n\
             created    stream FL_JOBS\n\
             different  stream FL_DLQ: max_age is 2, wanted 1\n\
             1 created, 1 as wanted, 1 differences"
        );
        assert_eq!(document(&report)["differences"][0]["weight"], "differs");
    }
}
