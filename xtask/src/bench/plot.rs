//! Curves as SVG: several series over an axis of numbers or of time.

use std::fmt::Write as _;

/// One curve: its name, and points by x.
pub struct Series {
    pub name: String,
    pub points: Vec<(f64, f64)>,
}

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 190.0;
const TOP: f64 = 36.0;
const BOTTOM: f64 = 50.0;
const COLOURS: [&str; 6] = ["#9aa5b1", "#2a7f62", "#c9a227", "#1f5fa8", "#a83f39", "#6b4fa0"];

/// Both axes logarithmic, with a line at each power of ten.
pub fn curves(title: &str, x_title: &str, y_title: &str, series: &[Series]) -> String {
    let values = series.iter().flat_map(|s| &s.points).map(|p| p.0);
    drawn(
        title,
        (x_title, Axis::around(values, LEFT, WIDTH - RIGHT)),
        y_title,
        series,
        true,
    )
}

/// Over a linear axis that begins at zero; without marks at the points, which are many.
pub fn over_time(title: &str, x_title: &str, y_title: &str, series: &[Series]) -> String {
    let values = series.iter().flat_map(|s| &s.points).map(|p| p.0);
    let x_axis = Axis::from_zero(values, LEFT, WIDTH - RIGHT);
    drawn(title, (x_title, x_axis), y_title, series, false)
}

fn drawn(title: &str, (x_title, x_axis): (&str, Axis), y_title: &str, series: &[Series], has_marks: bool) -> String {
    let values = series.iter().flat_map(|s| &s.points).map(|p| p.1);
    let y_axis = Axis::around(values, HEIGHT - BOTTOM, TOP);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{HEIGHT}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n\
         <text x=\"10\" y=\"20\" font-weight=\"bold\" font-size=\"14\">{title}</text>\n"
    );
    for (at, label) in x_axis.ticks() {
        line(&mut svg, (at, TOP), (at, HEIGHT - BOTTOM), "#e3e7eb");
        text(&mut svg, (at, HEIGHT - BOTTOM + 16.0), "middle", &label);
    }
    for (at, label) in y_axis.ticks() {
        line(&mut svg, (LEFT, at), (WIDTH - RIGHT, at), "#e3e7eb");
        text(&mut svg, (LEFT - 6.0, at + 4.0), "end", &label);
    }
    text(
        &mut svg,
        ((LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 12.0),
        "middle",
        x_title,
    );
    text(&mut svg, (10.0, TOP - 4.0), "start", y_title);
    for (number, one) in series.iter().enumerate() {
        let colour = COLOURS[number % COLOURS.len()];
        let points: Vec<_> = one
            .points
            .iter()
            .map(|(x, y)| (x_axis.place(*x), y_axis.place(*y)))
            .collect();
        let path: Vec<_> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let path = path.join(" ");
        let _ = writeln!(
            svg,
            "<polyline points=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>"
        );
        for (x, y) in points.into_iter().filter(|_| has_marks) {
            let _ = writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>");
        }
        let y = TOP + 18.0 * number as f64 + 10.0;
        let x = WIDTH - RIGHT + 14.0;
        line(&mut svg, (x, y - 4.0), (x + 20.0, y - 4.0), colour);
        text(&mut svg, (x + 26.0, y), "start", &one.name);
    }
    svg + "</svg>\n"
}

/// A bar of a value; a name that begins with `mark` is coloured apart.
pub fn bars(title: &str, unit: &str, mark: &str, bars: &[(String, f64)]) -> String {
    const NAMES: f64 = 270.0;
    const ROW: f64 = 24.0;
    let height = TOP + ROW * bars.len() as f64 + 16.0;
    let longest = bars.iter().map(|(_, value)| *value).fold(f64::MIN_POSITIVE, f64::max);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"{WIDTH}\" height=\"{height}\" fill=\"white\"/>\n\
         <text x=\"10\" y=\"20\" font-weight=\"bold\" font-size=\"14\">{title}</text>\n"
    );
    for (number, (name, value)) in bars.iter().enumerate() {
        let top = TOP + ROW * number as f64;
        let len = (WIDTH - NAMES - 90.0) * value / longest;
        let colour = COLOURS[usize::from(name.starts_with(mark))];
        let _ = writeln!(
            svg,
            "<rect class=\"bar\" x=\"{NAMES}\" y=\"{top:.1}\" width=\"{len:.1}\" height=\"16\" fill=\"{colour}\"/>"
        );
        text(&mut svg, (NAMES - 8.0, top + 12.0), "end", name);
        text(
            &mut svg,
            (NAMES + len + 6.0, top + 12.0),
            "start",
            &format!("{value:.2} {unit}"),
        );
    }
    svg + "</svg>\n"
}

fn line(svg: &mut String, from: (f64, f64), to: (f64, f64), colour: &str) {
    let _ = writeln!(
        svg,
        "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"{colour}\" stroke-width=\"2\"/>",
        from.0, from.1, to.0, to.1
    );
}

fn text(svg: &mut String, at: (f64, f64), anchor: &str, words: &str) {
    let _ = writeln!(
        svg,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">{words}</text>",
        at.0, at.1
    );
}

/// Powers of ten from `low` to `high`, or the values themselves, between two places on the picture.
struct Axis {
    is_linear: bool,
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Axis {
    fn around(values: impl Iterator<Item = f64>, from: f64, to: f64) -> Axis {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values.filter(|v| *v > 0.0) {
            low = low.min(value.log10().floor());
            high = high.max(value.log10().ceil());
        }
        if low >= high {
            (low, high) = (0.0, 1.0);
        }
        Axis {
            is_linear: false,
            low,
            high,
            from,
            to,
        }
    }

    fn from_zero(values: impl Iterator<Item = f64>, from: f64, to: f64) -> Axis {
        Axis {
            is_linear: true,
            low: 0.0,
            high: values.fold(f64::MIN_POSITIVE, f64::max),
            from,
            to,
        }
    }

    fn place(&self, value: f64) -> f64 {
        let value = match self.is_linear {
            true => value,
            false => value.max(f64::MIN_POSITIVE).log10(),
        };
        let share = (value - self.low) / (self.high - self.low);
        self.from + (self.to - self.from) * share.clamp(0.0, 1.0)
    }

    fn ticks(&self) -> Vec<(f64, String)> {
        if self.is_linear {
            // One, two or five of a power of ten: four to ten of them.
            let power = 10_f64.powf((self.high / 4.0).log10().floor());
            let step = [5.0, 2.0, 1.0].map(|n| n * power);
            let step = step.into_iter().find(|step| self.high / step >= 4.0).unwrap_or(power);
            let count = (self.high / step) as u32;
            let ticks = (0..=count).map(|n| f64::from(n) * step);
            return ticks.map(|value| (self.place(value), format!("{value}"))).collect();
        }
        let powers = self.low as i32..=self.high as i32;
        let label = |power: i32| match power {
            0..3 => format!("{}", 10_f64.powi(power)),
            3..6 => format!("{}k", 10_f64.powi(power - 3)),
            6.. => format!("{}M", 10_f64.powi(power - 6)),
            _ => format!("1e{power}"),
        };
        powers
            .map(|power| (self.place(10_f64.powi(power)), label(power)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_as_long_as_their_values() {
        let values = [("ours".to_owned(), 1.0), ("theirs".to_owned(), 4.0)];
        let svg = bars("title", "s", "ours", &values);
        assert_eq!(svg.matches("class=\"bar\"").count(), 2);
        assert!(
            svg.contains("width=\"100.0\"") && svg.contains("width=\"400.0\""),
            "{svg}"
        );
        assert_eq!(svg.matches(COLOURS[1]).count(), 1);
        assert!(svg.contains(">4.00 s<"));
    }

    #[test]
    fn axis_of_time_begins_at_zero_with_round_numbers() {
        let ticks = Axis::from_zero([3.0, 42.0].into_iter(), 0.0, 100.0).ticks();
        let labels: Vec<_> = ticks.iter().map(|tick| tick.1.as_str()).collect();
        assert_eq!(labels, ["0", "10", "20", "30", "40"]);
        assert!((ticks[1].0 - 23.8).abs() < 0.1, "{ticks:?}");
    }

    #[test]
    fn every_series_is_drawn_and_axes_have_powers_of_ten() {
        let series = ["a", "b"].map(|name| Series {
            name: name.into(),
            points: vec![(1000.0, 5.0), (131_072.0, 50.0)],
        });
        let svg = curves("title", "x", "y", &series);
        assert_eq!(svg.matches("<polyline").count(), 2);
        assert_eq!(svg.matches("<circle").count(), 4);
        for label in [">1k<", ">1M<", ">1<", ">100<", ">title<", ">a<"] {
            assert!(svg.contains(label), "{label} in {svg}");
        }
    }
}
