//! Names of templates with wildcards, as in Infinispan: `*` stands for any characters, `?` for one.

/// Whether a name has wildcards.
pub(crate) fn has_wildcards(name: &str) -> bool {
    name.contains(['*', '?'])
}

/// Whether a pattern stands for a name. The time is at most the product of both lengths.
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    let (mut at, mut next) = (0, 0);
    // After the last star, and the first character that it does not stand for.
    let mut star: Option<(usize, usize)> = None;
    while next < name.len() {
        match (pattern.get(at), star) {
            (Some('*'), _) => {
                star = Some((at + 1, next));
                at += 1;
            }
            (Some(own), _) if *own == '?' || *own == name[next] => (at, next) = (at + 1, next + 1),
            (_, Some((after, from))) => {
                star = Some((after, from + 1));
                (at, next) = (after, from + 1);
            }
            (_, None) => return false,
        }
    }
    pattern[at..].iter().all(|rest| *rest == '*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn star_stands_for_any_characters_and_question_mark_for_one() {
        for (pattern, name) in [
            ("org.*", "org."),
            ("org.*", "org.a.b"),
            ("*", ""),
            ("a?c*", "abcd"),
            ("*b*b", "abab"),
            ("a", "a"),
        ] {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in
            [("org.*", "orgx"), ("a?c", "ac"), ("*b", "abc"), ("", "a"), ("a", ""), ("a*c", "ab"), ("?", "")]
        {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
        let stars = "*a".repeat(512);
        assert!(!matches(&stars, &"a".repeat(511)) && matches(&stars, &"a".repeat(1_024)));
        assert!(has_wildcards("a?") && !has_wildcards("a.b"));
    }
}
