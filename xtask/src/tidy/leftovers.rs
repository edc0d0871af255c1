//! No `todo!`, `unimplemented!` or `dbg!`. Clippy finds them only in code that the build compiles.

use super::finding::Finding;
use super::sources::SourceFile;
use super::tokens;
use syn::spanned::Spanned;
use syn::visit::Visit;

const UNWANTED: [&str; 3] = ["todo", "unimplemented", "dbg"];

/// Checks one file, macro arguments and `macro_rules!` bodies included.
pub fn check(file: &SourceFile) -> Vec<Finding> {
    let mut visitor = Calls::default();
    visitor.visit_file(&file.syntax);
    let unwanted = visitor.found.into_iter().filter(|(name, _)| UNWANTED.contains(&name.as_str()));
    unwanted.map(|(name, line)| Finding::new(&file.path, line, format!("`{name}!` is left over"))).collect()
}

#[derive(Default)]
struct Calls {
    found: Vec<(String, usize)>,
}

impl<'ast> Visit<'ast> for Calls {
    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        if let Some(last) = call.path.segments.last() {
            self.found.push((last.ident.to_string(), call.path.span().start().line));
        }
        self.found.extend(tokens::macro_calls(call.tokens.clone()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<usize> {
        let file = SourceFile::parse("a.rs", text).expect("parses");
        check(&file).iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn leftovers_are_found() {
        assert_eq!(
            lines("fn a() { todo!() }\nfn b() { std::unimplemented!(\"x\") }\nfn c() { dbg!(1); }"),
            [1, 2, 3]
        );
        assert_eq!(lines("fn a() {\n assert!(\n  dbg!(true)\n );\n}"), [3]);
        assert_eq!(lines("macro_rules! m { () => { todo!() } }"), [1]);
    }

    #[test]
    fn other_uses_of_the_names_pass() {
        assert_eq!(
            lines("// todo!()\nfn todo() { println!(\"dbg!\"); let dbg = todo != 1; unreachable!() }"),
            [0; 0]
        );
    }
}
