//! INJECT_VIEW: an operation that installs an arbitrary view, for tests of partitions. It is not on the wire.

use crate::{Address, Cx, Event, Protocol, ProtocolId, View, ViewId};

crate::properties! {
    /// INJECT_VIEW has no properties.
    InjectViewConfig {}
}

/// The INJECT_VIEW layer.
pub struct InjectView;

impl InjectView {
    /// Creates the layer.
    pub const fn new(_config: InjectViewConfig) -> Self {
        Self
    }

    /// A text such as `A=A/B/C;B=B/C;C=C` has a view per member, coordinator first.
    fn parse(cx: &Cx<'_>, text: &str) -> Result<Option<View>, String> {
        let own = &*cx.shared().name;
        for assignment in text.split(';') {
            let (member, names) = assignment
                .split_once('=')
                .ok_or_else(|| format!("`{assignment}` is not of the form A=A/B/C"))?;
            if member.trim() != own {
                continue;
            }
            let member_of = |name: &str| {
                let name = name.trim();
                if name == own {
                    return Ok(cx.local().clone());
                }
                cx.shared().book.by_name(name).cloned().ok_or_else(|| format!("no member is named {name:?}"))
            };
            let members: Vec<Address> = names.split('/').map(member_of).collect::<Result<_, _>>()?;
            if !members.contains(cx.local()) {
                return Err(format!("the view of {own} does not contain {own}"));
            }
            let current = cx.view().ok_or("this member has no view yet")?;
            let id = ViewId { creator: members[0].clone(), id: current.id().id + 1 };
            return Ok(Some(View::new(id, members)));
        }
        Ok(None)
    }
}

impl Protocol for InjectView {
    fn name(&self) -> &'static str {
        "INJECT_VIEW"
    }

    fn id(&self) -> ProtocolId {
        ProtocolId(0)
    }

    fn only_takes(&self) -> bool {
        true
    }

    fn operations(&self) -> &'static [&'static str] {
        &["injectView"]
    }

    fn operation(&mut self, cx: &mut Cx<'_>, name: &str, args: &[&str]) -> Option<Result<String, String>> {
        if name != "injectView" {
            return None;
        }
        Some(Self::parse(cx, args.first().copied().unwrap_or_default()).map(|view| {
            let Some(view) = view else { return String::new() };
            let text = view.display(&cx.shared().book);
            let is_above = cx.below.iter().all(|slot| slot.protocol.id() != ProtocolId::GMS);
            let event = Event::InjectView(view);
            if is_above {
                cx.raise(event);
            } else {
                cx.lower(event);
            }
            text
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::{Harness, member, view};
    use crate::protocols::{Gms, GmsConfig};

    fn inject(harness: &mut Harness, text: &str) -> Result<String, String> {
        let result = harness.stack.operation(harness.now, "INJECT_VIEW", "injectView", &[text]).unwrap();
        harness.stack.run(harness.now);
        result
    }

    struct Names;

    impl Protocol for Names {
        fn name(&self) -> &'static str {
            "NAMES"
        }
        fn id(&self) -> ProtocolId {
            ProtocolId(0)
        }
        fn start(&mut self, cx: &mut Cx<'_>) {
            for (n, name) in [(2, "B"), (3, "C")] {
                cx.book().learn(&member(n), Some(name), None);
            }
        }
    }

    fn layers(is_above: bool) -> Vec<Box<dyn Protocol>> {
        let mut layers: Vec<Box<dyn Protocol>> = vec![
            Box::new(Gms::new(GmsConfig::default())),
            Box::new(InjectView::new(InjectViewConfig {})),
            Box::new(Names),
        ];
        if !is_above {
            layers.reverse();
        }
        layers
    }

    #[test]
    fn a_member_installs_the_view_that_the_text_assigns_to_it() {
        for is_above in [true, false] {
            let mut harness = Harness::with_layers(1, layers(is_above));
            harness.lower(Event::Connect);
            harness.raise(Event::Found(Vec::new()));
            assert!(harness.stack.shared().view.as_ref().is_some_and(|view| view.len() == 1));
            harness.take_up_events();
            inject(&mut harness, "B=B/C;A=C/A/B;C=C").unwrap();
            let wanted = view(1, &[3, 1, 2]);
            let installed = harness.stack.shared().view.clone().unwrap();
            assert_eq!(
                installed.members(),
                wanted.members(),
                "GMS {}",
                if is_above { "below" } else { "above" }
            );
            assert_eq!(installed.id(), wanted.id());
            let events = harness.take_up_events();
            assert_eq!(events, [Event::View(installed)]);
        }
    }

    #[test]
    fn a_text_that_does_not_fit_is_refused_and_installs_nothing() {
        let mut harness = Harness::with_layers(1, layers(true));
        harness.lower(Event::Connect);
        assert_eq!(inject(&mut harness, "A=A"), Err("this member has no view yet".to_owned()));
        harness.raise(Event::Found(Vec::new()));
        let before = harness.stack.shared().view.clone();
        assert_eq!(inject(&mut harness, "B=B/C"), Ok(String::new()), "nothing for this member");
        assert!(inject(&mut harness, "A").unwrap_err().contains("not of the form"));
        assert!(inject(&mut harness, "A=A/X").unwrap_err().contains("no member is named \"X\""));
        assert!(inject(&mut harness, "A=").unwrap_err().contains("no member is named \"\""));
        assert_eq!(harness.stack.shared().view, before);
    }
}
