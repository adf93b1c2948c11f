//! `longhaul-lab bench turns`: two programs measured in turns, and what differs.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::BenchError;

/// The same benchmark of an older and of this program, in turns.
///
/// A machine's pace changes from minute to minute, so only figures of one round are compared.
#[derive(Debug, Clone)]
pub struct Turns {
    /// The older `longhaul-lab`.
    pub old: PathBuf,
    /// This one.
    pub new: PathBuf,
    /// Rounds; each runs both programs, and every other one begins with the new one.
    pub rounds: u32,
    /// Arguments of `longhaul-lab bench`.
    pub arguments: Vec<String>,
}

/// A line of a table: words, and the blanks between them.
type Line = Vec<String>;

impl Turns {
    /// Runs all rounds, and writes the table of the benchmark with the median of new over old in
    /// place of each figure.
    ///
    /// # Errors
    /// A program that fails, or tables that do not fit each other.
    pub fn run(&self, out: &mut dyn Write, interrupted: &dyn Fn() -> bool) -> Result<(), BenchError> {
        let mut rounds = Vec::new();
        for round in 0..self.rounds {
            let mut programs = [&self.old, &self.new];
            if round % 2 == 1 {
                programs.reverse();
            }
            let mut tables = Vec::new();
            for program in programs {
                tables.push(lines(&self.measure(program)?));
                if interrupted() {
                    return Err(BenchError::Interrupted);
                }
            }
            if round % 2 == 1 {
                tables.reverse();
            }
            rounds.push(tables);
            writeln!(out, "round {} of {} is through", round + 1, self.rounds)?;
        }
        writeln!(out, "\nNew over old, the median of {} rounds, in place of each figure:\n", self.rounds)?;
        out.write_all(ratios(&rounds).ok_or_else(unlike)?.as_bytes())?;
        Ok(())
    }

    /// Returns what a program prints.
    fn measure(&self, program: &Path) -> Result<String, BenchError> {
        let output =
            Command::new(program).arg("bench").args(&self.arguments).stderr(Stdio::inherit()).output()?;
        if !output.status.success() {
            let what = format!("{} bench: {}", program.display(), output.status);
            return Err(io::Error::other(what).into());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

fn unlike() -> BenchError {
    io::Error::other("the two programs print tables of different form").into()
}

fn lines(text: &str) -> Vec<Line> {
    text.lines().map(words).collect()
}

/// Cuts a line into words and the blanks between them.
fn words(line: &str) -> Line {
    let mut words: Vec<String> = Vec::new();
    for letter in line.chars() {
        match words.last_mut() {
            Some(word) if word.ends_with(' ') == (letter == ' ') => word.push(letter),
            _ => words.push(letter.to_string()),
        }
    }
    words
}

/// A figure has a fraction; whole numbers are labels.
fn figure(word: &str) -> Option<f64> {
    word.contains('.').then(|| word.parse().ok()).flatten()
}

/// The text of the first table, with the median over the rounds of new over old in place of each
/// figure, and a dash where not all tables have one; `None` if the tables are not of one form.
fn ratios(rounds: &[Vec<Vec<Line>>]) -> Option<String> {
    let first = rounds.first()?.first()?;
    let labels = |table: &Vec<Line>| table.iter().map(|line| line.first().cloned()).collect::<Vec<_>>();
    if rounds.iter().any(|tables| tables.len() != 2)
        || rounds.iter().flatten().any(|table| labels(table) != labels(first))
    {
        return None;
    }
    let mut text = String::new();
    for (row, line) in first.iter().enumerate() {
        // Only lines of a table: prose may have numbers as well.
        let is_row = line.iter().filter(|word| figure(word).is_some()).count() >= 2;
        for (column, word) in line.iter().enumerate() {
            if is_row && figure(word).is_some() {
                place(&mut text, &of_all(rounds, row, column), word.len());
            } else {
                text += word;
            }
        }
        text.push('\n');
    }
    Some(text)
}

/// The median of new over old in one place of the tables; a dash where a table has no figure.
fn of_all(rounds: &[Vec<Vec<Line>>], row: usize, column: usize) -> String {
    let at = |table: &Vec<Line>| figure(table.get(row)?.get(column)?);
    let ratio = |tables: &Vec<Vec<Line>>| match tables.as_slice() {
        [old, new] => Some(at(new)? / at(old)?),
        _ => None,
    };
    let found: Option<Vec<f64>> = rounds.iter().map(ratio).collect();
    found.map_or_else(|| "-".to_owned(), |found| format!("{:.3}", median(found)))
}

/// Writes a cell to the end of a line. What is wider than the figure before takes its room from
/// the blanks in front.
fn place(text: &mut String, cell: &str, width: usize) {
    for _ in width..cell.len() {
        if text.ends_with("  ") {
            text.pop();
        }
    }
    *text += &format!("{cell:>width$}");
}

/// The middle of some ratios; of an even number the mean of both in the middle. 0 over 0 is left
/// out.
fn median(mut ratios: Vec<f64>) -> f64 {
    ratios.retain(|ratio| !ratio.is_nan());
    ratios.sort_by(f64::total_cmp);
    let middle = |at: usize| ratios.get(at).copied();
    let (low, high) = (middle(ratios.len().saturating_sub(1) / 2), middle(ratios.len() / 2));
    low.zip(high).map_or(f64::NAN, |(low, high)| f64::midpoint(low, high))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(goodput: f64, cores: f64) -> Vec<Line> {
        lines(&format!(
            "Of 4140 bytes, about 1.5 s\nscheme     bytes  [Gbit/s]  cores\nsr          1472  {goodput:>8.2}  {cores:>5.2}\n"
        ))
    }

    #[test]
    fn each_figure_becomes_the_median_of_its_ratios() {
        let rounds: Vec<_> = [(10.0, 9.0), (20.0, 20.0), (10.0, 11.0)]
            .map(|(old, new)| vec![table(old, 1.0), table(new, 2.0)])
            .into();
        let text = ratios(&rounds).unwrap();
        let wanted = "Of 4140 bytes, about 1.5 s\nscheme     bytes  [Gbit/s]  cores\nsr          1472     1.000  2.000\n";
        assert_eq!(text, wanted);
    }

    #[test]
    fn tables_of_another_form_are_no_ratios() {
        let other = lines("Of 4140 bytes, about 1.5 s\nscheme\nmds and more\n");
        assert_eq!(ratios(&[vec![table(1.0, 1.0), other]]), None);
        assert_eq!(ratios(&[vec![table(1.0, 1.0)]]), None);
    }

    #[test]
    fn the_middle_of_an_even_number_is_a_mean() {
        assert_eq!(median(vec![1.0, 4.0, 2.0, 3.0]), 2.5);
        assert_eq!(median(vec![f64::NAN, 3.0]), 3.0);
        assert!(median(vec![]).is_nan());
    }

    #[test]
    fn words_and_blanks_make_the_line() {
        let line = "  sr  12.5 ms";
        assert_eq!(words(line).concat(), line);
        assert_eq!(words(line).len(), 6);
    }
}
