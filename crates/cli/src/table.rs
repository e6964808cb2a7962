use crate::terminal::Escaped;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Align {
    Left,
    Right,
}

/// The first column has names, the others have numbers.
pub(crate) fn table(rows: &[Vec<String>]) -> String {
    aligned(rows, &[Align::Left])
}

/// Columns without an alignment are right-aligned. Foreign names may contain line feeds: a cell is one line.
pub(crate) fn aligned(rows: &[Vec<String>], align: &[Align]) -> String {
    let escaped = |row: &Vec<String>| row.iter().map(|cell| Escaped(cell).to_string()).collect();
    let rows: Vec<Vec<String>> = rows.iter().map(escaped).collect();
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let width = widths[column];
            if column > 0 {
                line.push_str("  ");
            }
            match align.get(column) {
                Some(Align::Left) => line.push_str(&format!("{cell:<width$}")),
                _ => line.push_str(&format!("{cell:>width$}")),
            }
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_align() {
        let rows = [vec!["member".to_owned(), "req/s".to_owned()], vec!["A".to_owned(), "12".to_owned()]];
        assert_eq!(table(&rows), "member  req/s\nA          12\n");
        assert_eq!(aligned(&rows, &[Align::Left; 2]), "member  req/s\nA       12\n");
        assert_eq!(table(&[vec!["A\nB\u{1b}[0m".to_owned(), "1".to_owned()]]), "A\\nB\\u001b[0m  1\n");
    }
}
