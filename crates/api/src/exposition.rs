//! The formats of the text that has all metrics.

/// A text format of Prometheus.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TextFormat {
    /// The text exposition format, version 0.0.4.
    #[default]
    Plain,
    /// OpenMetrics, version 1.0.0.
    OpenMetrics,
}

impl TextFormat {
    /// The content type of its texts.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Plain => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }

    /// The format that an `Accept` header prefers; the plain one if it names neither.
    pub fn preferred(accept: &str) -> Self {
        let quality = |range: &str| {
            let mut parameters = range.split(';').skip(1);
            parameters.find_map(|one| one.trim().strip_prefix("q=")?.parse::<f64>().ok()).unwrap_or(1.0)
        };
        let best = |is_it: fn(&str) -> bool| {
            let ranges = accept.split(',').filter(|range| is_it(range.split(';').next().unwrap_or_default().trim()));
            ranges.map(quality).fold(0.0, f64::max)
        };
        let open = best(|kind| kind.eq_ignore_ascii_case("application/openmetrics-text"));
        let plain = best(|kind| ["text/plain", "text/*", "*/*"].iter().any(|known| kind.eq_ignore_ascii_case(known)));
        if open > 0.0 && open >= plain { Self::OpenMetrics } else { Self::Plain }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scraper_gets_the_format_that_it_prefers() {
        let of_2_42 = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
                       text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        let of_3 = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        for accept in [of_2_42, of_3, "Application/OpenMetrics-Text", "text/html, application/openmetrics-text ; q=0.1"] {
            assert_eq!(TextFormat::preferred(accept), TextFormat::OpenMetrics, "{accept}");
        }
        let plain_first = "text/plain;version=0.0.4;q=0.6,application/openmetrics-text;version=1.0.0;q=0.5";
        for accept in ["", "*/*", "text/plain", "text/html", plain_first, "application/openmetrics-text;q=0"] {
            assert_eq!(TextFormat::preferred(accept), TextFormat::Plain, "{accept}");
        }
    }
}
