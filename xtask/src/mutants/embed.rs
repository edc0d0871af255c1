//! Puts mutants into one text, each behind a switch, so that a single build holds all of them.
//!
//! `a + b` becomes `(if on(7) { (a) - (b) } else { a + b })`, and a function begins with
//! `if on(8) { return 0; }`. Nothing of the original text is removed: changes are insertions around
//! expressions, and therefore nest.
//!
//! Some mutants have no such form: those in constants and `const fn`, an operator beside a `let` of
//! a condition, and values of functions that return `impl Trait`.

use super::listed::{Genre, Mutant};
use proc_macro2::{LineColumn, Span};
use std::collections::HashMap;
use std::ops::Range;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// The call that asks whether a mutant is active, in the changed text.
const SWITCH: &str = "crate::mutant_switch::on";

/// A text with mutants.
pub struct Embedded {
    pub text: String,
    /// The bytes of `text` that belong to each mutant alone.
    pub pieces: Vec<(u32, Range<usize>)>,
}

/// Puts mutants with their numbers into the text of a file. A mutant without a piece in the result
/// has no form behind a switch.
///
/// # Errors
/// The text is not Rust.
pub fn embed(text: &str, mutants: &[(u32, &Mutant)]) -> syn::Result<Embedded> {
    let file = syn::parse_file(text)?;
    let mut embedder = Embedder::new(text);
    embedder.find_constants(&file);
    for (number, mutant) in mutants {
        embedder.add(*number, mutant);
    }
    embedder.visit_file(&file);
    Ok(embedder.render())
}

/// Text that is inserted, with the parts of it that belong to one mutant.
#[derive(Default)]
struct Text {
    text: String,
    pieces: Vec<(u32, Range<usize>)>,
}

impl Text {
    fn plain(text: &str) -> Self {
        Self { text: text.to_owned(), pieces: Vec::new() }
    }

    fn push(&mut self, number: u32, text: &str) {
        let start = self.text.len();
        self.text += text;
        self.pieces.push((number, start..self.text.len()));
    }
}

/// Which of two insertions around the same expression is outside.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    Arm,
    Guard,
    Expression,
}

struct Insertion {
    /// Sorts insertions at one place: ends before starts, and so that they nest.
    key: (usize, u8, usize, u8),
    text: Text,
}

struct Embedder<'t> {
    text: &'t str,
    /// Offsets of the first byte of each line.
    lines: Vec<usize>,
    /// Ranges in which no function can be called that is not `const`.
    constants: Vec<Range<usize>>,
    /// Mutants of operators, by the offset of the operator.
    operators: HashMap<usize, Vec<(u32, Mutant)>>,
    /// Mutants of guards, arms and fields, by the offset at which they start.
    parts: HashMap<usize, Vec<(u32, Mutant)>>,
    insertions: Vec<Insertion>,
}

impl<'t> Embedder<'t> {
    fn new(text: &'t str) -> Self {
        let lines = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        Self {
            text,
            lines,
            constants: Vec::new(),
            operators: HashMap::new(),
            parts: HashMap::new(),
            insertions: Vec::new(),
        }
    }

    /// Returns the offset of a line from 1 and a column from 0, which counts characters.
    fn offset(&self, line: usize, column: usize) -> usize {
        let start = self.lines[line - 1];
        let rest = &self.text[start..];
        start + rest.char_indices().nth(column).map_or(rest.len(), |(at, _)| at)
    }

    fn range(&self, span: Span) -> Range<usize> {
        let offset = |place: LineColumn| self.offset(place.line, place.column);
        offset(span.start())..offset(span.end())
    }

    fn source(&self, node: &impl Spanned) -> &'t str {
        &self.text[self.range(node.span())]
    }

    fn find_constants(&mut self, file: &syn::File) {
        let mut finder = Constants(Vec::new());
        finder.visit_file(file);
        self.constants = finder.0.into_iter().map(|span| self.range(span)).collect();
    }

    fn add(&mut self, number: u32, mutant: &Mutant) {
        let [(line, column), _] = mutant.span;
        let start = self.offset(line, column - 1);
        if self.constants.iter().any(|range| range.contains(&start)) {
            return;
        }
        match mutant.genre {
            Genre::Binary | Genre::Unary => {
                self.operators.entry(start).or_default().push((number, mutant.clone()));
            }
            Genre::Guard | Genre::Arm | Genre::Field => {
                self.parts.entry(start).or_default().push((number, mutant.clone()));
            }
            Genre::Value if mutant.is_opaque => {}
            Genre::Value => {
                let mut text = Text::default();
                let value = &mutant.replacement;
                text.push(number, &format!("if {SWITCH}({number}) {{ return {value}; }} "));
                self.insertions.push(Insertion { key: (start, 1, 0, 0), text });
            }
        }
    }

    /// Inserts text before and after a range.
    fn wrap(&mut self, range: Range<usize>, level: Level, before: Text, after: &str) {
        let key = (range.start, 1, usize::MAX - range.end, level as u8);
        self.insertions.push(Insertion { key, text: before });
        let key = (range.end, 0, usize::MAX - range.start, u8::MAX - level as u8);
        self.insertions.push(Insertion { key, text: Text::plain(after) });
    }

    fn render(mut self) -> Embedded {
        self.insertions.sort_by_key(|insertion| insertion.key);
        let mut embedded = Embedded { text: String::new(), pieces: Vec::new() };
        let mut done = 0;
        for insertion in self.insertions {
            let at = insertion.key.0;
            embedded.text += &self.text[done..at];
            done = at;
            let start = embedded.text.len();
            embedded.text += &insertion.text.text;
            let moved =
                |(number, range): (u32, Range<usize>)| (number, start + range.start..start + range.end);
            embedded.pieces.extend(insertion.text.pieces.into_iter().map(moved));
        }
        embedded.text += &self.text[done..];
        embedded
    }
}

impl<'ast> Visit<'ast> for Embedder<'_> {
    fn visit_expr_binary(&mut self, node: &'ast syn::ExprBinary) {
        let operator = self.range(node.op.span()).start;
        if let Some(mutants) = self.operators.remove(&operator).filter(|_| !is_let_chain(node)) {
            let (left, right) = (self.source(&node.left), self.source(&node.right));
            let mut before = Text::plain("(");
            for (number, mutant) in mutants {
                let operator = &mutant.replacement;
                before.push(
                    number,
                    &format!("if {SWITCH}({number}) {{ ({left}) {operator} ({right}) }} else "),
                );
            }
            before.text += "{ ";
            self.wrap(self.range(node.span()), Level::Expression, before, " })");
        }
        visit::visit_expr_binary(self, node);
    }

    fn visit_expr_unary(&mut self, node: &'ast syn::ExprUnary) {
        let range = self.range(node.span());
        for (number, _) in self.operators.remove(&range.start).unwrap_or_default() {
            let operand = self.source(&node.expr);
            let mut before = Text::default();
            before.push(number, &format!("(if {SWITCH}({number}) {{ {operand} }} else {{ "));
            self.wrap(range.clone(), Level::Expression, before, " })");
        }
        visit::visit_expr_unary(self, node);
    }

    fn visit_arm(&mut self, node: &'ast syn::Arm) {
        let start = self.range(node.span()).start;
        let guard = node.guard.as_ref().map(|(_, guard)| self.range(guard.span()));
        for (number, _) in self.parts.remove(&start).unwrap_or_default() {
            let mut before = Text::default();
            match &guard {
                Some(guard) => {
                    before.push(number, &format!("!{SWITCH}({number}) && ("));
                    self.wrap(guard.clone(), Level::Arm, before, ")");
                }
                None => {
                    before.push(number, &format!(" if !{SWITCH}({number})"));
                    let at = self.range(node.pat.span()).end;
                    self.insertions.push(Insertion { key: (at, 0, 0, 0), text: before });
                }
            }
        }
        if let Some(guard) = guard {
            let mut before = Text::default();
            let mut ends = String::new();
            for (number, mutant) in self.parts.remove(&guard.start).unwrap_or_default() {
                let condition = match mutant.replacement.as_str() {
                    "true" => format!("{SWITCH}({number}) || ("),
                    _ => format!("!{SWITCH}({number}) && ("),
                };
                before.push(number, &condition);
                ends.push(')');
            }
            self.wrap(guard, Level::Guard, before, &ends);
        }
        visit::visit_arm(self, node);
    }

    fn visit_expr_struct(&mut self, node: &'ast syn::ExprStruct) {
        for field in &node.fields {
            let (Some(base), syn::Member::Named(name)) = (&node.rest, &field.member) else { continue };
            let start = self.range(field.span()).start;
            for (number, _) in self.parts.remove(&start).unwrap_or_default() {
                let base = self.source(base);
                let mut before = Text::default();
                let colon = if field.colon_token.is_none() { format!("{name}: ") } else { String::new() };
                let value = format!("{colon}if {SWITCH}({number}) {{ ({base}).{name} }} else {{ ");
                before.push(number, &value);
                self.wrap(self.range(field.expr.span()), Level::Arm, before, " }");
            }
        }
        visit::visit_expr_struct(self, node);
    }
}

/// Whether an operand is the `let` of a condition, which can be nowhere else.
fn is_let_chain(node: &syn::ExprBinary) -> bool {
    let is_let = |operand: &syn::Expr| match operand {
        syn::Expr::Let(_) => true,
        syn::Expr::Binary(inner) => is_let_chain(inner),
        _ => false,
    };
    is_let(&node.left) || is_let(&node.right)
}

/// Finds constants and bodies of `const fn`.
struct Constants(Vec<Span>);

impl<'ast> Visit<'ast> for Constants {
    fn visit_item_const(&mut self, node: &'ast syn::ItemConst) {
        self.0.push(node.span());
    }

    fn visit_impl_item_const(&mut self, node: &'ast syn::ImplItemConst) {
        self.0.push(node.span());
    }

    fn visit_trait_item_const(&mut self, node: &'ast syn::TraitItemConst) {
        self.0.push(node.span());
    }

    fn visit_item_static(&mut self, node: &'ast syn::ItemStatic) {
        self.0.push(node.span());
    }

    fn visit_expr_const(&mut self, node: &'ast syn::ExprConst) {
        self.0.push(node.span());
    }

    fn visit_type_array(&mut self, node: &'ast syn::TypeArray) {
        self.0.push(node.len.span());
    }

    fn visit_expr_repeat(&mut self, node: &'ast syn::ExprRepeat) {
        self.0.push(node.len.span());
        visit::visit_expr_repeat(self, node);
    }

    fn visit_item_fn(&mut self, node: &'ast syn::ItemFn) {
        if node.sig.constness.is_some() {
            self.0.push(node.block.span());
        }
        visit::visit_item_fn(self, node);
    }

    fn visit_impl_item_fn(&mut self, node: &'ast syn::ImplItemFn) {
        if node.sig.constness.is_some() {
            self.0.push(node.block.span());
        }
        visit::visit_impl_item_fn(self, node);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A mutant at the `nth` occurrence of a text.
    fn mutant(text: &str, genre: Genre, at: &str, nth: usize, replacement: &str) -> Mutant {
        let offset = text.match_indices(at).nth(nth).unwrap().0;
        let line = text[..offset].matches('\n').count();
        let column = text[..offset].rsplit('\n').next().unwrap().chars().count();
        let start = (line + 1, column + 1);
        Mutant {
            name: String::new(),
            file: String::new(),
            genre,
            span: [start, start],
            replacement: replacement.to_owned(),
            is_opaque: false,
        }
    }

    fn embedded(text: &str, mutants: &[Mutant]) -> Embedded {
        let numbered: Vec<_> = (1..).zip(mutants).collect();
        let mut result = embed(text, &numbered).unwrap();
        syn::parse_file(&result.text).unwrap();
        for (number, range) in &result.pieces {
            assert!(result.text[range.clone()].contains(&format!("({number})")), "{}", result.text);
        }
        result.text = result.text.replace(SWITCH, "on");
        result
    }

    #[test]
    fn operators_nest() {
        let text = "fn f() { \"\u{e4}\"; a + b == !c && d }";
        let binary = |at, replacement| mutant(text, Genre::Binary, at, 0, replacement);
        let mutants = [
            binary("==", "!="),
            binary("+", "-"),
            mutant(text, Genre::Unary, "!", 0, ""),
            binary("&&", "||"),
            mutant(text, Genre::Value, "\"", 0, "false"),
        ];
        let expected = "fn f() { if on(5) { return false; } \"\u{e4}\"; \
             (if on(4) { (a + b == !c) || (d) } else { (if on(1) { (a + b) != (!c) } else { \
             (if on(2) { (a) - (b) } else { a + b }) == (if on(3) { c } else { !c }) }) && d }) }";
        let result = embedded(text, &mutants);
        assert_eq!(result.text, expected);
        assert_eq!(result.pieces.len(), 5);
    }

    #[test]
    fn arms_guards_and_fields_have_switches() {
        let text = "fn f() { match a { b if c < d => S { x: 1, y, ..e }, g => h, _ => i } }";
        let mutants = [
            mutant(text, Genre::Guard, "c <", 0, "true"),
            mutant(text, Genre::Guard, "c <", 0, "false"),
            mutant(text, Genre::Arm, "b if", 0, ""),
            mutant(text, Genre::Arm, "g =>", 0, ""),
            mutant(text, Genre::Field, "x:", 0, ""),
            mutant(text, Genre::Field, "y,", 0, ""),
            mutant(text, Genre::Binary, "<", 0, ">"),
        ];
        let expected = "fn f() { match a { b if !on(3) && (on(1) || (!on(2) && (\
             (if on(7) { (c) > (d) } else { c < d })))) => \
             S { x: if on(5) { (e).x } else { 1 }, y: if on(6) { (e).y } else { y }, ..e }, \
             g if !on(4) => h, _ => i } }";
        assert_eq!(embedded(text, &mutants).text, expected);
    }

    #[test]
    fn mutants_without_a_form_are_left_out() {
        let text = "const A: u8 = 1 + 2; const fn f() -> u8 { 3 * 4 } fn g() { if let B = c && d {} }";
        let mutants = [
            mutant(text, Genre::Binary, "+", 0, "-"),
            mutant(text, Genre::Binary, "*", 0, "/"),
            mutant(text, Genre::Value, "3", 0, "0"),
            mutant(text, Genre::Binary, "&&", 0, "||"),
        ];
        let result = embedded(text, &mutants);
        assert_eq!(result.text, text);
        assert!(result.pieces.is_empty());
    }
}
