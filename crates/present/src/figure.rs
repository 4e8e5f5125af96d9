// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A number that says where it comes from, and sentences made of words and numbers.

use crate::text::grouped;
use serde::{Serialize, Serializer, ser::SerializeStruct};

/// Where a number comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Tag {
    /// Counted in a trace or by a checker: exact.
    Counted,
    /// Measured on this machine.
    Measured,
    /// Computed by a simulation of hardware.
    Simulated,
    /// Taken from a publication, a configuration or the user, not observed here.
    Assumed,
}

impl Tag {
    /// All tags with what they mean, for legends.
    pub const LEGEND: [(Tag, &'static str); 4] = [
        (Tag::Counted, "counted in the trace or by the checker"),
        (Tag::Measured, "measured on this machine"),
        (Tag::Simulated, "computed by a simulation of the hardware"),
        (
            Tag::Assumed,
            "taken from a publication, a configuration or the command line",
        ),
    ];

    /// The tag as shown.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Tag::Counted => "counted",
            Tag::Measured => "measured",
            Tag::Simulated => "simulated",
            Tag::Assumed => "assumed",
        }
    }
}

/// What a number counts.
#[allow(missing_docs)] // its variants say it
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum Unit {
    /// Things, named by the field.
    #[serde(rename = "1")]
    Count,
    /// Hundredths of a whole.
    #[serde(rename = "%")]
    Percent,
    /// A difference of two numbers of hundredths.
    #[serde(rename = "points")]
    Points,
    /// A change of a share, in points; always shown with its sign.
    #[serde(rename = "points change")]
    PointsChange,
    /// A change in hundredths of what was before; always shown with its sign.
    #[serde(rename = "% change")]
    PercentChange,
    #[serde(rename = "ns")]
    Nanoseconds,
    #[serde(rename = "us")]
    Microseconds,
    #[serde(rename = "ms")]
    Milliseconds,
    #[serde(rename = "s")]
    Seconds,
    #[serde(rename = "B")]
    Bytes,
    #[serde(rename = "KiB")]
    Kibibytes,
    /// 10^9 cycles in a second.
    #[serde(rename = "GHz")]
    Gigahertz,
    /// CPUs that are busy, in parts where it is not a whole one.
    #[serde(rename = "CPUs")]
    Cpus,
    /// Things in a second.
    #[serde(rename = "1/s")]
    PerSecond,
    /// Cycles of a CPU.
    #[serde(rename = "cycles")]
    Cycles,
    /// Things in 100 others.
    #[serde(rename = "per 100")]
    Per100,
    /// Things in 1,000 others.
    #[serde(rename = "per 1000")]
    Per1000,
}

/// A number with unit and tag. Every output shows [`Figure::text`], so that they agree.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figure {
    /// The number, not rounded, finite.
    pub value: f64,
    /// The unit of `value`, which also decides how it is rounded.
    pub unit: Unit,
    /// Where it comes from.
    pub tag: Tag,
}

impl Figure {
    /// A number that was counted.
    #[must_use]
    pub const fn counted(value: f64, unit: Unit) -> Self {
        Self {
            value,
            unit,
            tag: Tag::Counted,
        }
    }

    /// A time that was counted, in the unit in which it has few digits.
    #[must_use]
    pub fn time(ns: f64) -> Self {
        let (value, unit) = match ns {
            ..1e4 => (ns, Unit::Nanoseconds),
            ..1e7 => (ns / 1e3, Unit::Microseconds),
            ..1e10 => (ns / 1e6, Unit::Milliseconds),
            _ => (ns / 1e9, Unit::Seconds),
        };
        Self::counted(value, unit)
    }

    /// A number that was measured here.
    #[must_use]
    pub const fn measured(value: f64, unit: Unit) -> Self {
        Self {
            value,
            unit,
            tag: Tag::Measured,
        }
    }

    /// A number that was simulated.
    #[must_use]
    pub const fn simulated(value: f64, unit: Unit) -> Self {
        Self {
            value,
            unit,
            tag: Tag::Simulated,
        }
    }

    /// A number that was assumed.
    #[must_use]
    pub const fn assumed(value: f64, unit: Unit) -> Self {
        Self {
            value,
            unit,
            tag: Tag::Assumed,
        }
    }

    /// A count of things that was counted.
    #[must_use]
    pub const fn count(value: u64) -> Self {
        Self::counted(value as f64, Unit::Count)
    }

    /// The number as shown, without its unit but for a percent sign: from 10 on (and for counts
    /// and shares) rounded to an integer, below to one decimal. A share or change below 1 %, or a
    /// share or loss above 99 %, has one too, so that it does not look like none or all.
    #[must_use]
    pub fn text(&self) -> String {
        let shown = self.value.abs();
        let whole = matches!(
            self.unit,
            Unit::Percent | Unit::PercentChange | Unit::Per100
        );
        let grows = self.unit == Unit::PercentChange && self.value > 0.0;
        let digits = if self.unit == Unit::Cpus && shown > 0.0 && shown < 1.0 {
            // two digits of what may be very small
            let zeros = (-shown.log10()).floor().clamp(0.0, 6.0) as usize;
            format!("{shown:.*}", zeros + 2)
        } else if whole && shown > 0.0 && shown < 0.95 {
            format!("{shown:.1}")
        } else if whole && !grows && shown > 99.0 && shown < 100.0 {
            // towards zero: what is not all must not look like all
            format!("{:.1}", (shown * 10.0).floor() / 10.0)
        } else if shown.fract() == 0.0 || shown >= 9.95 || whole {
            // `as` holds values beyond 64 bits at the largest.
            grouped(shown.round() as u64)
        } else if shown < 0.05 {
            format!("{shown:.3}")
        } else {
            format!("{shown:.1}")
        };
        let sign = match self.value.total_cmp(&0.0) {
            _ if digits == "0" || digits == "0.0" => "",
            std::cmp::Ordering::Less => "-",
            _ if matches!(self.unit, Unit::PercentChange | Unit::PointsChange) => "+",
            _ => "",
        };
        match self.unit {
            Unit::Percent | Unit::PercentChange => format!("{sign}{digits} %"),
            _ => format!("{sign}{digits}"),
        }
    }

    /// The number with its unit: `686 ns`.
    #[must_use]
    pub fn with_unit(&self) -> String {
        let text = self.text();
        match self.unit {
            Unit::Nanoseconds => text + " ns",
            Unit::Microseconds => text + " us",
            Unit::Milliseconds => text + " ms",
            Unit::Seconds => text + " s",
            Unit::Bytes => text + " B",
            Unit::Cpus => text + " CPUs",
            Unit::Kibibytes => text + " KiB",
            Unit::Gigahertz => text + " GHz",
            Unit::Cycles => text + " cycles",
            Unit::PointsChange => text + " points",
            _ => text,
        }
    }
}

impl Serialize for Figure {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_struct("Figure", 4)?;
        object.serialize_field("value", &self.value)?;
        object.serialize_field("unit", &self.unit)?;
        object.serialize_field("tag", &self.tag)?;
        object.serialize_field("text", &self.text())?;
        object.end()
    }
}

/// A piece of a sentence.
#[allow(missing_docs)] // its variants say it
#[derive(Clone, Debug, PartialEq)]
pub enum Part {
    Words(String),
    Number(Figure),
}

impl From<&str> for Part {
    fn from(words: &str) -> Self {
        Part::Words(words.into())
    }
}

impl From<String> for Part {
    fn from(words: String) -> Self {
        Part::Words(words)
    }
}

impl From<Figure> for Part {
    fn from(figure: Figure) -> Self {
        Part::Number(figure)
    }
}

/// Words and numbers; terminal and page show the same ones.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sentence(pub Vec<Part>);

impl Sentence {
    /// As plain text, without tags.
    #[must_use]
    pub fn plain(&self) -> String {
        let text = |part: &Part| match part {
            Part::Words(words) => words.clone(),
            Part::Number(figure) => figure.with_unit(),
        };
        self.0.iter().map(text).collect()
    }
}

/// Makes a [`Sentence`] of words and [`Figure`]s.
#[macro_export]
macro_rules! sentence {
    ($($part:expr),* $(,)?) => {
        $crate::Sentence(vec![$($crate::Part::from($part)),*])
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_rounded_in_one_way() {
        for (value, unit, text) in [
            (35959.0, Unit::Count, "35,959"),
            (26.4, Unit::Per100, "26"),
            (3.4, Unit::Per100, "3"),
            (3.44, Unit::Per1000, "3.4"),
            (9.96, Unit::Nanoseconds, "10"),
            (686.1, Unit::Nanoseconds, "686"),
            (0.004, Unit::Milliseconds, "0.004"),
            (0.54, Unit::Percent, "0.5 %"),
            (1.74, Unit::Percent, "2 %"),
            (0.0, Unit::Percent, "0 %"),
            (-11.2, Unit::PercentChange, "-11 %"),
            (-0.2, Unit::PercentChange, "-0.2 %"),
            (-99.97, Unit::PercentChange, "-99.9 %"),
            (-100.0, Unit::PercentChange, "-100 %"),
            (99.7, Unit::PercentChange, "+100 %"),
            (-0.02, Unit::PercentChange, "0.0 %"),
            (0.31, Unit::Per100, "0.3"),
            (99.97, Unit::Per100, "99.9"),
            (100.0, Unit::Per100, "100"),
            (2.6, Unit::Gigahertz, "2.6"),
            (3.0, Unit::PercentChange, "+3 %"),
            (0.0, Unit::Count, "0"),
        ] {
            assert_eq!(Figure::counted(value, unit).text(), text, "{value}");
        }
        assert_eq!(
            Figure::assumed(2127.0, Unit::Cycles).with_unit(),
            "2,127 cycles"
        );
    }
}
