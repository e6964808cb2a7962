//! The checks, their results, and remedies.

use serde::Serialize;

use crate::terminal::Escaped;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Verdict {
    Good,
    /// It may fail later or under load.
    Warning,
    Bad,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct Finding {
    checked: String,
    pub(super) verdict: Verdict,
    found: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<String>,
}

#[derive(Default, Serialize)]
pub(super) struct Findings {
    is_well: bool,
    findings: Vec<Finding>,
    #[serde(skip)]
    prints_at_once: bool,
}

impl Findings {
    pub(super) fn new(prints_at_once: bool) -> Self {
        Self { prints_at_once, ..Self::default() }
    }

    pub(super) fn good(&mut self, checked: impl Into<String>, found: impl Into<String>) {
        self.add(Finding {
            checked: checked.into(),
            verdict: Verdict::Good,
            found: found.into(),
            advice: None,
        });
    }

    pub(super) fn warning(
        &mut self,
        checked: impl Into<String>,
        found: impl Into<String>,
        advice: impl Into<String>,
    ) {
        let advice = Some(advice.into());
        self.add(Finding { checked: checked.into(), verdict: Verdict::Warning, found: found.into(), advice });
    }

    pub(super) fn bad(
        &mut self,
        checked: impl Into<String>,
        found: impl Into<String>,
        advice: impl Into<String>,
    ) {
        let advice = Some(advice.into());
        self.add(Finding { checked: checked.into(), verdict: Verdict::Bad, found: found.into(), advice });
    }

    fn add(&mut self, finding: Finding) {
        if self.prints_at_once {
            print!("{}", finding.text());
        }
        self.findings.push(finding);
    }

    pub(super) fn count(&self, verdict: Verdict) -> usize {
        self.findings.iter().filter(|finding| finding.verdict == verdict).count()
    }

    pub(super) fn json(mut self) -> serde_json::Result<String> {
        self.is_well = self.count(Verdict::Bad) == 0;
        serde_json::to_string(&self)
    }
}

impl Finding {
    fn text(&self) -> String {
        let verdict = match self.verdict {
            Verdict::Good => "ok",
            Verdict::Warning => "warning",
            Verdict::Bad => "BAD",
        };
        let mut text = format!("{verdict:<8}{}: {}\n", Escaped(&self.checked), Escaped(&self.found));
        if let Some(advice) = &self.advice {
            text += &format!("        -> {}\n", Escaped(advice));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_are_printed_as_lines_and_as_json() {
        let mut findings = Findings::new(false);
        findings.good("name", "a is 10.0.0.1");
        findings.warning("buffers", "small", "enlarge them");
        assert_eq!(findings.findings[1].text(), "warning buffers: small\n        -> enlarge them\n");
        assert_eq!(findings.findings[0].text(), "ok      name: a is 10.0.0.1\n");
        assert_eq!(findings.count(Verdict::Bad), 0);
        findings.good("a\nok      b", "\u{1b}[2K");
        assert_eq!(findings.findings[2].text(), "ok      a\\nok      b: \\u001b[2K\n");
        let json: serde_json::Value = serde_json::from_str(&findings.json().unwrap()).unwrap();
        let good = serde_json::json!({"checked": "name", "verdict": "good", "found": "a is 10.0.0.1"});
        assert_eq!((&json["is_well"], &json["findings"][0]), (&true.into(), &good));
        let mut findings = Findings::new(false);
        findings.bad("port", "refused", "start it");
        let json: serde_json::Value = serde_json::from_str(&findings.json().unwrap()).unwrap();
        assert_eq!((&json["is_well"], &json["findings"][0]["advice"]), (&false.into(), &"start it".into()));
    }
}
