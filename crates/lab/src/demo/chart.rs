//! Latency CDFs as inline SVG. The time axis is logarithmic, and each stack has a line. The colours are CSS variables
//! of the page, so one picture works on light and dark pages.

/// The style that all pages with charts and tables share. Each page defines its own colours.
pub const STYLE: &str = "
* { box-sizing: border-box; }
body { margin:0 auto; padding:2rem 1rem 4rem; max-width:62rem; background:var(--page);
  color:var(--ink); font:16px/1.5 system-ui, sans-serif; }
.scroll { overflow-x:auto; } table { border-collapse:collapse; width:100%; font-size:.92rem;
  font-variant-numeric:tabular-nums; }
th, td { padding:.3rem .6rem; border-bottom:1px solid var(--line); text-align:right; white-space:nowrap; }
th:first-child, td:first-child { text-align:left; } th { color:var(--soft); font-weight:500; }
svg { width:100%; height:auto; display:block; margin:.4rem 0; }
.grid { stroke:var(--line); stroke-width:1; } .tick { fill:var(--soft); font-size:12px; }
polyline { fill:none; stroke-width:2; stroke-linejoin:round; }
.key { display:inline-block; width:.8rem; height:.8rem; border-radius:2px; margin-right:.5rem; vertical-align:-1px; }
";

/// One line of a chart.
pub struct Series<'a> {
    /// Name of the stack that the line shows.
    pub name: &'a str,
    /// Points (microseconds, fraction of operations at or below this time), in rising order.
    pub points: &'a [(f64, f64)],
    /// Index of the line's colour.
    pub colour: usize,
}

/// Width of a chart, in the units of the SVG.
pub const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 52.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 40.0;
/// Fraction of the operations that the chart shows. The slowest operations may lie beyond its right edge.
const CUT: f64 = 0.999;

struct Axis {
    low: f64,
    high: f64,
}

impl Axis {
    fn over(series: &[Series<'_>]) -> Axis {
        let shown = series
            .iter()
            .flat_map(|series| series.points)
            .filter(|(micros, fraction)| *micros > 0.0 && *fraction <= CUT)
            .map(|(micros, _)| *micros);
        let low = shown.clone().fold(f64::INFINITY, f64::min);
        let high = shown.fold(0.0, f64::max);
        if low < high {
            Axis {
                low: low * 0.9,
                high: high * 1.1,
            }
        } else {
            Axis {
                low: 1.0,
                high: 1000.0,
            }
        }
    }

    fn x(&self, micros: f64) -> f64 {
        let part = (micros / self.low).ln() / (self.high / self.low).ln();
        LEFT + part.clamp(0.0, 1.0) * (WIDTH - LEFT - RIGHT)
    }

    /// Returns the values 1, 2 and 5 of each decade.
    fn ticks(&self) -> Vec<f64> {
        let mut ticks = Vec::new();
        for decade in [1.0, 10.0, 100.0, 1e3, 1e4, 1e5, 1e6, 1e7] {
            for step in [1.0, 2.0, 5.0] {
                let micros = decade * step;
                if micros >= self.low && micros <= self.high {
                    ticks.push(micros);
                }
            }
        }
        ticks
    }
}

fn y(fraction: f64) -> f64 {
    HEIGHT - BOTTOM - fraction * (HEIGHT - TOP - BOTTOM)
}

/// Returns the chart as SVG.
pub fn cdf(title: &str, series: &[Series<'_>]) -> String {
    let axis = Axis::over(series);
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">\n",
        escape(title)
    );
    for percent in [0.0, 0.25, 0.5, 0.75, 1.0] {
        let at = y(percent);
        svg += &format!(
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{:.0}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
             <text class=\"tick\" x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">{:.0} %</text>\n",
            WIDTH - RIGHT,
            LEFT - 6.0,
            at + 4.0,
            percent * 100.0
        );
    }
    for micros in axis.ticks() {
        let at = axis.x(micros);
        svg += &format!(
            "<line class=\"grid\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{:.1}\"/>\
             <text class=\"tick\" x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\n",
            y(0.0),
            y(0.0) + 16.0,
            time(micros)
        );
    }
    svg += &format!(
        "<text class=\"tick\" x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"end\">latency (logarithmic)</text>\n",
        WIDTH - RIGHT,
        HEIGHT - 6.0
    );
    for line in series {
        let path: Vec<_> = line
            .points
            .iter()
            .filter(|(micros, fraction)| *micros > 0.0 && *fraction <= CUT)
            .map(|(micros, fraction)| format!("{:.1},{:.1}", axis.x(*micros), y(*fraction)))
            .collect();
        svg += &format!(
            "<polyline class=\"s{}\" points=\"{}\"><title>{}</title></polyline>\n",
            line.colour,
            path.join(" "),
            escape(line.name)
        );
    }
    svg + "</svg>\n"
}

fn time(micros: f64) -> String {
    if micros >= 1e6 {
        format!("{:.0} s", micros / 1e6)
    } else if micros >= 1e3 {
        format!("{:.0} ms", micros / 1e3)
    } else {
        format!("{micros:.0} µs")
    }
}

/// Escapes a text for HTML.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_stay_inside_and_rise() {
        let points = [(20.0, 0.0), (40.0, 0.5), (90.0, 0.99), (50_000.0, 1.0)];
        let series = [Series {
            name: "a < b",
            points: &points,
            colour: 1,
        }];
        let svg = cdf("SET", &series);
        assert!(svg.contains("a &lt; b"));
        let path = svg
            .split("points=\"")
            .nth(1)
            .unwrap()
            .split('"')
            .next()
            .unwrap();
        let places: Vec<(f64, f64)> = path
            .split(' ')
            .map(|place| place.split_once(',').unwrap())
            .map(|(x, y)| (x.parse().unwrap(), y.parse().unwrap()))
            .collect();
        // The slowest operation lies beyond the right edge of the chart.
        assert_eq!(places.len(), 3);
        for pair in places.windows(2) {
            assert!(pair[0].0 <= pair[1].0 && pair[0].1 >= pair[1].1);
        }
        assert!(
            places
                .iter()
                .all(|(x, y)| (0.0..=WIDTH).contains(x) && (0.0..=HEIGHT).contains(y))
        );
        assert!(svg.contains("50 µs") && !svg.contains("50 ms"));
    }

    #[test]
    fn nothing_measured_is_an_empty_chart() {
        assert!(cdf("SET", &[]).ends_with("</svg>\n"));
    }
}
