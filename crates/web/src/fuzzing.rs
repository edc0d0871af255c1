//! Entries for fuzz targets: the parsers of requests. They promise nothing to others.

use crate::dav::if_header::IfHeader;
use crate::dav::propfind::Wanted;
use crate::dav::proppatch;
use crate::dav::xml;
use crate::form::Multipart;
use crate::head::Head;
use crate::ranges::Ranges;
use crate::target::Target;
use crate::text;
use std::io::Read;

/// Parses a request, and the contents of its headers.
pub fn request(bytes: &[u8]) {
    let Ok(Some((head, length))) = Head::parse(bytes) else { return };
    assert!(length <= bytes.len());
    for name in &head.target.names {
        assert!(!name.is_empty() && !name.contains(&b'/') && !name.contains(&0));
        assert!(!matches!(&name[..], b"." | b".."));
        assert_eq!(text::percent_decoded(text::percent(name).as_bytes()).as_deref(), Some(&name[..]));
        let shown = text::disposition("attachment", name);
        assert!(shown.bytes().all(|byte| (b' '..0x7f).contains(&byte)));
    }
    let _ = head.get("if").map(IfHeader::parse);
    let _ = head.get("destination").map(Target::parse);
    if let Some(Ranges::Parts(parts)) = head.get("range").map(|value| Ranges::parse(value, 1 << 20)) {
        assert!(parts.iter().all(|(start, end)| start < end && *end <= 1 << 20));
    }
    let mut rest = &bytes[length..];
    if let Some(mut form) = Multipart::new(&head, &mut rest) {
        let mut data = Vec::new();
        while let Ok(Some(_)) = form.next_part() {
            let _ = form.read_to_end(&mut data);
        }
        assert!(data.len() <= bytes.len());
    }
}

/// Parses the body of a request of WebDAV.
pub fn dav_xml(bytes: &[u8]) {
    let _ = Wanted::parse(bytes);
    let _ = proppatch::changes(bytes);
    let Ok(root) = xml::parse(bytes) else { return };
    // A property that is stored and sent again means the same.
    if let Ok(again) = xml::parse(format!("<r>{}</r>", root.content()).as_bytes()) {
        assert_eq!(again.children, root.children);
    }
}
