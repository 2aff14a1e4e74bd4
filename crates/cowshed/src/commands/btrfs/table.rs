//! Tables as btrfs(8) prints them: columns as wide as their longest cell, a blank between them.

#[derive(Clone)]
enum Line {
    Heading(Vec<String>),
    Row(Vec<String>),
    /// Dashes under each column.
    Rule,
}

pub struct Table {
    columns: usize,
    lines: Vec<Line>,
}

impl Table {
    pub fn new(columns: usize) -> Table {
        let lines = Vec::new();
        Table { columns, lines }
    }

    pub fn heading(&mut self, cells: Vec<String>) {
        self.lines.push(Line::Heading(cells));
    }

    pub fn row(&mut self, cells: Vec<String>) {
        self.lines.push(Line::Row(cells));
    }

    pub fn rule(&mut self) {
        self.lines.push(Line::Rule);
    }

    /// Headings begin at the left; other cells end at the right, but for those of `left` columns.
    pub fn text(&self, left: &[usize]) -> String {
        let mut widths = vec![0; self.columns];
        for line in &self.lines {
            if let Line::Heading(cells) | Line::Row(cells) = line {
                widths
                    .iter_mut()
                    .zip(cells)
                    .for_each(|(width, cell)| *width = cell.chars().count().max(*width));
            }
        }
        let shown = |line: &Line| -> String {
            let mut cells = widths.iter().enumerate().map(|(column, &width)| match line {
                Line::Rule => "-".repeat(width),
                Line::Heading(cells) => format!("{:<width$}", cells.get(column).map_or("", |cell| cell)),
                Line::Row(cells) if left.contains(&column) => {
                    format!("{:<width$}", cells.get(column).map_or("", |cell| cell))
                }
                Line::Row(cells) => format!("{:>width$}", cells.get(column).map_or("", |cell| cell)),
            });
            let first = cells.next().unwrap_or_default();
            cells.fold(first, |line, cell| line + " " + &cell) + "\n"
        };
        self.lines.iter().map(shown).collect()
    }
}
