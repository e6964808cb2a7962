use consort_conf::{ConfigError, Node, Tree};

pub(crate) fn leaf(tree: &Tree, node: &Node) -> Result<(), ConfigError> {
    node.children.first().map_or(Ok(()), |child| Err(tree.unknown_element(node, child, &[])))
}

pub(crate) fn required<'n>(tree: &Tree, node: &'n Node, name: &str) -> Result<&'n str, ConfigError> {
    match node.get(name) {
        Some((value, _)) if !value.is_empty() => Ok(value),
        _ => Err(tree.wrong(node.position, format!("<{}> needs the attribute `{name}`", node.name))),
    }
}

pub(crate) fn parsed<V>(
    tree: &Tree,
    node: &Node,
    name: &str,
    parse: impl Fn(&str) -> Result<V, String>,
) -> Result<Option<V>, ConfigError> {
    let Some((text, position)) = node.get(name) else { return Ok(None) };
    let wrong = |why: String| tree.wrong(position, format!("attribute {name} of {}: {why}", node.name));
    parse(text).map(Some).map_err(wrong)
}

pub(crate) fn whole<V: std::str::FromStr>(text: &str) -> Result<V, String> {
    text.parse().map_err(|_| format!("`{text}` is not a whole number that fits"))
}

pub(crate) fn one_of<V: Clone>(text: &str, all: &[(&str, V)]) -> Result<V, String> {
    let found = all.iter().find(|(name, _)| name.eq_ignore_ascii_case(text));
    found.map(|(_, value)| value.clone()).ok_or_else(|| {
        let names: Vec<&str> = all.iter().map(|(name, _)| *name).collect();
        format!("`{text}` is none of {}", names.join(", "))
    })
}
