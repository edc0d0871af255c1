//! Links and headings of a Markdown document.
//!
//! A link is `](TARGET)` outside of code, or the definition `[NAME]: TARGET`. A heading's name in
//! the page is made of its words as mdbook makes it.

use anyhow::Result;

/// Returns `text` with each link's target as `change` says.
///
/// # Errors
/// Those of `change`.
pub fn rewrite(text: &str, mut change: impl FnMut(&str) -> Result<String>) -> Result<String> {
    let mut out = String::with_capacity(text.len());
    let mut fence: Option<&str> = None;
    // A span of code may go on in the next line of its paragraph.
    let mut is_code = false;
    for line in text.split_inclusive('\n') {
        let words = line.trim();
        if let Some(marker) = ["```", "~~~"].into_iter().find(|marker| words.starts_with(marker)) {
            match fence {
                None => fence = Some(marker),
                Some(open) if open == marker => fence = None,
                Some(_) => {}
            }
            is_code = false;
        } else if fence.is_none() && !line.starts_with("    ") {
            is_code &= !words.is_empty();
            rewrite_line(line, &mut is_code, &mut out, &mut change)?;
            continue;
        }
        out.push_str(line);
    }
    Ok(out)
}

fn rewrite_line(
    line: &str,
    is_code: &mut bool,
    out: &mut String,
    change: &mut impl FnMut(&str) -> Result<String>,
) -> Result<()> {
    if let (Some((name, rest)), true) = (line.split_once("]: "), line.starts_with('[')) {
        out.push_str(&format!("{name}]: {}\n", change(rest.trim())?));
        return Ok(());
    }
    let mut rest = line;
    while let Some(at) = rest.find(['`', ']']) {
        let (before, after) = rest.split_at(at);
        out.push_str(before);
        if after.starts_with('`') {
            *is_code = !*is_code;
        } else if let (false, Some((target, end))) =
            (*is_code, after.strip_prefix("](").and_then(|rest| rest.split_once(')')))
        {
            out.push_str(&format!("]({})", change(target)?));
            rest = end;
            continue;
        }
        out.push_str(&after[..1]);
        rest = &after[1..];
    }
    out.push_str(rest);
    Ok(())
}

/// Returns the names of a document's headings.
pub fn headings(text: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for (_, title) in titles(text) {
        let id = heading_id(title);
        let number = (1..).map(|number| format!("{id}-{number}"));
        let id = std::iter::once(id.clone()).chain(number).find(|id| !found.contains(id));
        found.extend(id);
    }
    found
}

/// Returns the text below the heading with a name, up to the next one of its level.
pub fn section<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let all: Vec<(usize, &str)> = titles(text).collect();
    let at = all.iter().position(|(_, title)| heading_id(title) == name)?;
    let start = offset(text, all[at].1) + all[at].1.len();
    let next = all[at + 1..].iter().find(|(level, _)| *level <= all[at].0);
    let end = next.map_or(text.len(), |(level, title)| offset(text, title) - level - 1);
    Some(text[start..end].trim())
}

/// Returns where a part of a text begins.
fn offset(text: &str, part: &str) -> usize {
    part.as_ptr() as usize - text.as_ptr() as usize
}

/// Returns level and words of each heading outside of code.
fn titles(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_code = false;
    text.lines().filter_map(move |line| {
        is_code ^= line.trim_start().starts_with("```");
        let words = line.trim_start_matches('#');
        let level = line.len() - words.len();
        (!is_code && (1..=6).contains(&level)).then_some(())?;
        Some((level, words.strip_prefix(' ')?))
    })
}

/// Returns the name that mdbook gives a heading.
fn heading_id(title: &str) -> String {
    let letters = title.trim().chars().filter_map(|letter| match letter {
        letter if letter.is_alphanumeric() || letter == '_' || letter == '-' => {
            Some(letter.to_ascii_lowercase())
        }
        letter if letter.is_whitespace() => Some('-'),
        _ => None,
    });
    letters.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_outside_of_code_are_rewritten() {
        let upper = |text: &str| rewrite(text, |target| Ok(target.to_uppercase())).unwrap();
        assert_eq!(upper("See [`a` b](c.md#d), ![e](f)."), "See [`a` b](C.MD#D), ![e](F).");
        assert_eq!(upper("`[a](b)` [c](d)\n```\n[e](f)\n```\n"), "`[a](b)` [c](D)\n```\n[e](f)\n```\n");
        assert_eq!(upper("`code\nmore](x)` [a](b)\n"), "`code\nmore](x)` [a](B)\n");
        assert_eq!(upper("[name]: x.md\n"), "[name]: X.MD\n");
        assert_eq!(upper("    [a](b)\n"), "    [a](b)\n");
        assert_eq!(upper("an array[1] (b)\n"), "an array[1] (b)\n");
    }

    #[test]
    fn headings_have_the_names_of_mdbook() {
        let text = "# A `b`\n\n## mkfs.btrfs\n```\n# no\n```\n### Full disks, and quotas\n## A b\n";
        assert_eq!(headings(text), ["a-b", "mkfsbtrfs", "full-disks-and-quotas", "a-b-1"]);
    }

    #[test]
    fn a_section_ends_at_the_next_heading_of_its_level() {
        let text = "# T\n## One\n\na\n### Inner\nb\n## Two\nc\n";
        assert_eq!(section(text, "one"), Some("a\n### Inner\nb"));
        assert_eq!(section(text, "two"), Some("c"));
        assert_eq!(section(text, "three"), None);
    }
}
