//! The report as pictures: a bar for each comparison, a line for each growth. SVG is text, and so few shapes of it are
//! needed that a library would be the longer way.

use std::fmt::Write;

use super::markdown::{amount, quantity};
use super::{Group, Growth, Pair};

/// Pixels.
const WIDTH: f64 = 960.0;
/// Where the bars' names end.
const LABELS: f64 = 520.0;
/// Where the bars' scale ends, and the figures behind them begin.
const BARS: f64 = 860.0;
const ROW: f64 = 24.0;
const HEAD: f64 = 72.0;
const HEIGHT: f64 = 360.0;
/// Where a scale has a line, and which of them crowd a scale that reaches further than [`FINE`] (a factor of 20).
const TICKS: [(f64, bool); 15] = [
    (0.001, false),
    (0.01, false),
    (0.02, true),
    (0.05, true),
    (0.1, false),
    (0.2, true),
    (0.5, true),
    (1.0, false),
    (2.0, true),
    (5.0, true),
    (10.0, false),
    (20.0, true),
    (50.0, true),
    (100.0, false),
    (1000.0, false),
];
const FINE: f64 = 3.0;
const BETTER: &str = "#2a7f62";
const WORSE: &str = "#c8553d";
const GREY: &str = "#888";
const LINES: [&str; 6] = ["#2a7f62", "#c8553d", "#3b6ea5", "#8e6c8a", "#b58900", "#444"];

impl Group {
    /// Its plots: what each is called, and its SVG.
    pub(super) fn plots(&self) -> Vec<(String, String)> {
        let mut plots = Vec::new();
        if !self.pairs.is_empty() {
            plots.push((format!("{}-ratios", self.key), bars(&self.name, &self.pairs)));
        }
        let mut left: Vec<&Growth> = self.growths.iter().collect();
        while let Some(first) = left.first().copied() {
            // What is in one unit and grows along the same axis stands in one picture.
            let (those, others): (Vec<_>, Vec<_>) =
                left.iter().partition(|one| one.along == first.along && one.unit == first.unit);
            let slug = |text: &str| text.replace(|sign: char| !sign.is_ascii_alphanumeric(), "-");
            let name = format!("{}-{}-{}", self.key, slug(&first.along), slug(first.unit.name()));
            plots.push((name.to_lowercase(), lines(&those)));
            left = others;
        }
        plots
    }
}

/// A bar for each pair, from 1, which is as good, to its ratio, on a logarithmic scale; a thin line from the least to the
/// most of its turns.
fn bars(title: &str, pairs: &[Pair]) -> String {
    let far = |ratio: f64| if ratio.is_finite() && ratio > 0.0 { ratio.ln().abs() } else { 0.0 };
    let reach = pairs.iter().map(|pair| far(pair.ratio())).fold(2f64.ln(), f64::max) * 1.1;
    let x = |ratio: f64| {
        let middle = f64::midpoint(LABELS, BARS);
        middle + (ratio.ln() / reach).clamp(-1.0, 1.0) * (BARS - LABELS) / 2.0
    };
    let bottom = HEAD + ROW * pairs.len() as f64;
    let mut svg = begin(
        bottom + 16.0,
        title,
        "how many times as good as the other: bdnfs is better where it is green; the thin line is from the least to the most turn",
    );
    let wide = reach > FINE;
    for (tick, fine) in TICKS {
        if far(tick) <= reach && !(fine && wide) {
            line(
                &mut svg,
                [x(tick), HEAD - 6.0, x(tick), bottom],
                if tick == 1.0 { "#222" } else { "#ddd" },
                1.0,
            );
            text(&mut svg, [x(tick), HEAD - 10.0], "middle", GREY, &format!("{tick}×"));
        }
    }
    for (index, pair) in pairs.iter().enumerate() {
        let (y, ratio) = (HEAD + ROW * index as f64, pair.ratio());
        if !ratio.is_finite() || ratio <= 0.0 {
            continue;
        }
        let (name, colour) =
            (format!("{}, beside {}", pair.name, pair.against), if ratio < 1.0 { WORSE } else { BETTER });
        let turns = pair.ratios();
        text(&mut svg, [LABELS - 8.0, y + 16.0], "end", "#222", &short(&name));
        let (left, right) = (x(ratio.min(1.0)), x(ratio.max(1.0)));
        // Writing to a string can't fail, here and below.
        let _ = writeln!(
            svg,
            "<rect x='{left:.1}' y='{:.1}' width='{:.1}' height='{:.1}' fill='{colour}' fill-opacity='0.8'/>",
            y + 4.0,
            (right - left).max(1.0),
            ROW - 8.0
        );
        line(&mut svg, [x(turns.min()), y + ROW / 2.0, x(turns.max()), y + ROW / 2.0], "#222", 1.5);
        text(&mut svg, [BARS + 12.0, y + 16.0], "start", "#222", &times(ratio));
    }
    svg + "</svg>\n"
}

/// A line for each growth, both scales logarithmic. All are of one unit, along the same.
fn lines(growths: &[&Growth]) -> String {
    let Some(first) = growths.first() else { return String::new() };
    let points =
        || growths.iter().flat_map(|one| &one.points).filter(|(at, value)| *at > 0.0 && value.median() > 0.0);
    let range = |values: &mut dyn Iterator<Item = f64>| {
        values.fold([f64::INFINITY, f64::NEG_INFINITY], |[low, high], one| [low.min(one), high.max(one)])
    };
    let across = range(&mut points().map(|(at, _)| *at));
    // Whole powers of ten around all of it, so that a line that looks flat is flat.
    let [low, high] = range(&mut points().map(|(_, value)| value.median()));
    let up = [10f64.powf(low.log10().floor()), 10f64.powf((high * 1.0001).log10().ceil())];
    let (left, right, top, bottom) = (110.0, 620.0, HEAD, HEIGHT - 50.0);
    let part =
        |value: f64, [low, high]: [f64; 2]| (value / low).ln() / (high / low).ln().max(f64::MIN_POSITIVE);
    let x = |at: f64| left + part(at, across) * (right - left);
    let y = |value: f64| bottom - part(value, up) * (bottom - top);
    let title = format!("{} along {}", first.unit.name(), first.along);
    let mut svg = begin(HEIGHT, &title, "both scales are logarithmic; medians");
    let mut tick = up[0];
    while tick <= up[1] * 1.001 {
        line(&mut svg, [left, y(tick), right, y(tick)], "#ddd", 1.0);
        text(&mut svg, [left - 8.0, y(tick) + 4.0], "end", GREY, &quantity(tick, first.unit));
        tick *= 10.0;
    }
    for (at, _) in &first.points {
        line(&mut svg, [x(*at), top, x(*at), bottom], "#eee", 1.0);
        text(&mut svg, [x(*at), bottom + 18.0], "middle", GREY, &amount(*at, &first.along));
    }
    text(&mut svg, [f64::midpoint(left, right), bottom + 38.0], "middle", "#222", &first.along);
    for (index, growth) in growths.iter().enumerate() {
        let colour = LINES[index % LINES.len()];
        let told = growth.points.iter().filter(|(at, value)| *at > 0.0 && value.median() > 0.0);
        let path: Vec<_> =
            told.map(|(at, value)| format!("{:.1},{:.1}", x(*at), y(value.median()))).collect();
        let _ = writeln!(
            svg,
            "<polyline points='{}' fill='none' stroke='{colour}' stroke-width='2.5'/>",
            path.join(" ")
        );
        path.iter().filter_map(|point| point.split_once(',')).for_each(|(x, y)| {
            let _ = writeln!(svg, "<circle cx='{x}' cy='{y}' r='3.5' fill='{colour}'/>");
        });
        let row = top + 10.0 + 22.0 * index as f64;
        line(&mut svg, [right + 16.0, row, right + 36.0, row], colour, 2.5);
        text(&mut svg, [right + 42.0, row + 4.0], "start", "#222", &growth.name);
    }
    svg + "</svg>\n"
}

fn begin(height: f64, title: &str, about: &str) -> String {
    let mut svg = format!(
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height}' width='{WIDTH}' height='{height}' \
         font-family='sans-serif' font-size='13'>\n<rect width='100%' height='100%' fill='white'/>\n\
         <text x='16' y='24' font-size='17' font-weight='bold' fill='#222'>{}</text>\n",
        escaped(title)
    );
    text(&mut svg, [16.0, 44.0], "start", GREY, about);
    svg
}

fn line(svg: &mut String, [x1, y1, x2, y2]: [f64; 4], colour: &str, width: f64) {
    let _ = writeln!(
        svg,
        "<line x1='{x1:.1}' y1='{y1:.1}' x2='{x2:.1}' y2='{y2:.1}' stroke='{colour}' stroke-width='{width}'/>"
    );
}

fn text(svg: &mut String, [x, y]: [f64; 2], anchor: &str, colour: &str, text: &str) {
    let _ = writeln!(
        svg,
        "<text x='{x:.1}' y='{y:.1}' text-anchor='{anchor}' fill='{colour}'>{}</text>",
        escaped(text)
    );
}

/// A ratio behind its bar.
fn times(ratio: f64) -> String {
    if ratio < 100.0 { format!("{ratio:.2}×") } else { format!("{ratio:.0}×") }
}

/// What fits beside the bars.
fn short(text: &str) -> String {
    const MOST: usize = 76;
    if text.chars().count() <= MOST {
        return text.to_owned();
    }
    text.chars().take(MOST - 1).chain(['…']).collect()
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::Samples;
    use crate::unit::Unit;

    fn side(figure: f64) -> Samples {
        [figure].into_iter().collect()
    }

    #[test]
    fn every_pair_has_its_bar_on_its_side() {
        let pair = |name, bdnfs| Pair::new(name, Unit::Megabytes, "a<b", [side(2.0), side(bdnfs)]);
        let svg = bars("title", &[pair("faster", 4.0), pair("slower", 1.0), pair("nothing", 0.0)]);
        assert_eq!((svg.matches(BETTER).count(), svg.matches(WORSE).count()), (1, 1));
        assert!(svg.contains("2.00×") && svg.contains("0.50×") && svg.contains("faster, beside a&lt;b"));
    }

    #[test]
    fn every_growth_has_its_line() {
        let growth = |name: &str, factor: f64| Growth {
            name: name.to_owned(),
            unit: Unit::Seconds,
            along: "files".to_owned(),
            points: vec![(1000.0, side(factor)), (1e6, side(1000.0 * factor))],
        };
        let svg = lines(&[&growth("one", 0.01), &growth("other", 0.02)]);
        assert_eq!((svg.matches("<polyline").count(), svg.matches("<circle").count()), (2, 4));
        assert!(svg.contains("1,000,000") && !svg.contains("NaN"), "{svg}");
    }
}
