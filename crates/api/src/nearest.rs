//! The nearest valid word, for error messages.

use strsim::damerau_levenshtein;

/// Most names that a list has.
const MOST: usize = 16;

/// The candidate that was most likely meant by `word`, if one is near.
///
/// A candidate is near if its edit distance is at most a third of the letters of `word` (at least
/// one). Swapped neighbours count once; case is ignored. Otherwise the only candidate that is a
/// prefix of `word`, or that `word` is a prefix of, is near.
pub fn nearest<'a>(word: &str, candidates: &[&'a str]) -> Option<&'a str> {
    // No valid word is that long, and the cost of the distance is quadratic.
    if word.len() > 200 {
        return None;
    }
    let lower = word.to_lowercase();
    let limit = (word.chars().count() / 3).max(1);
    let letters = lower.chars().count();
    // The distance is at least the difference of the lengths, and takes far longer.
    let may_be_near = |c: &&&str| !c.is_ascii() || c.len().abs_diff(letters) <= limit;
    let near = candidates
        .iter()
        .filter(may_be_near)
        .map(|c| (damerau_levenshtein(&lower, &c.to_lowercase()), *c))
        .filter(|(distance, c)| *distance <= limit && *distance < c.chars().count())
        .min_by_key(|(distance, _)| *distance);
    if let Some((_, candidate)) = near {
        return Some(candidate);
    }
    let related = |c: &&&str| word.len() > 2 && c.len() > 2 && (c.starts_with(&lower) || lower.starts_with(**c));
    let mut related = candidates.iter().filter(related);
    match (related.next(), related.next()) {
        (Some(one), None) => Some(one),
        _ => None,
    }
}

/// A suggestion to replace `word`: the nearest candidate, or else a list of candidates.
pub fn hint(word: &str, candidates: &[&str]) -> String {
    match nearest(word, candidates) {
        Some(candidate) => format!("did you mean {candidate:?}?"),
        None => one_of(candidates),
    }
}

/// What there is instead of a `what` that is not there: all names, or, of many, the nearest one.
pub fn instead(what: &str, name: &str, known: &[&str]) -> String {
    match (known.len(), nearest(name, known)) {
        (0, _) => format!("there is no {what} at all"),
        (..=MOST, _) => format!("there are: {}", known.join(", ")),
        (_, Some(near)) => format!("did you mean {near:?}?"),
        (all, None) => format!("there are {all}: {}, …", known[..MOST].join(", ")),
    }
}

/// `write one of "a", "b"`, cut at 16 candidates.
pub fn one_of(candidates: &[&str]) -> String {
    let mut different: Vec<&str> = Vec::new();
    for candidate in candidates {
        if !different.contains(candidate) {
            different.push(candidate);
        }
        if different.len() > MOST {
            break;
        }
    }
    let mut words: Vec<String> = different.iter().take(MOST).map(|c| format!("{c:?}")).collect();
    if different.len() > MOST {
        words.push("…".into());
    }
    match words.as_slice() {
        [] => "there are none".into(),
        [one] => format!("write {one}"),
        _ => format!("write one of {}", words.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_names_the_nearest_is_reported() {
        assert_eq!(instead("chain", "wbe", &["web", "dns"]), "there are: web, dns");
        assert_eq!(instead("rule", "x", &[]), "there is no rule at all");
        let names: Vec<String> = (0..1_000).map(|number| format!("fw.{number}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        assert_eq!(instead("NF", "wf.7", &names), "did you mean \"fw.7\"?");
        let said = instead("NF", "monitor", &names);
        assert!(said.starts_with("there are 1000: fw.0, fw.1, ") && said.ends_with(", fw.15, …"), "{said}");
    }

    #[test]
    fn finds_what_was_meant() {
        let words = ["frames", "packet_bytes", "hugepages"];
        assert_eq!(nearest("frame", &words), Some("frames"));
        assert_eq!(nearest("farmes", &words), Some("frames"));
        assert_eq!(nearest("Frames", &words), Some("frames"));
        assert_eq!(nearest("packet", &words), Some("packet_bytes"));
        assert_eq!(nearest("pakcet_byte", &words), Some("packet_bytes"));
        assert_eq!(nearest("cores", &words), None);
        assert_eq!(nearest("", &words), None);
        assert_eq!(nearest("b", &["a"]), None);
    }

    #[test]
    fn says_what_there_is() {
        assert_eq!(hint("x", &[]), "there are none");
        assert_eq!(hint("zebra", &["in0"]), "write \"in0\"");
        assert_eq!(hint("zebra", &["in0", "out0"]), "write one of \"in0\", \"out0\"");
        assert_eq!(hint("zebra", &["in", "in"]), "write \"in\"", "each word once");
        assert_eq!(hint("zebra", &["in", "out", "in"]), "write one of \"in\", \"out\"");
        let many: Vec<String> = (0..20).map(|i| format!("port-number-{i}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert!(hint("zebra", &many).ends_with("\"port-number-15\", …"));
    }
}
