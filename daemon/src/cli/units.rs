//! Times as a person writes them.

use std::time::Duration;

/// Reads `500ms`, `10s`, `1.5m` or `8h`.
pub(super) fn parse_duration(text: &str) -> Result<Duration, String> {
    let unit_at = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let seconds = match unit {
        "ms" => 0.001,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => {
            return Err(format!("{text:?} needs a unit: write it like 500ms, 10s, 5m or 8h"));
        }
    };
    let number: f64 =
        number.parse().map_err(|_| format!("{text:?} does not begin with a number: write it like 10s"))?;
    Duration::try_from_secs_f64(number * seconds).map_err(|_| format!("{text:?} is too long"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_without_a_unit() {
        assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration("1.5m"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_duration("8h"), Ok(Duration::from_secs(8 * 3600)));
        for wrong in ["10", "s", "", "1d", "-1s", "1.2.3s", "99999999999999999999h"] {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
    }
}
