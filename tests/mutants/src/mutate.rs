//! Puts mutants into the source of a file. A mutant is a small change that should break something.
//! All mutants are compiled at once, each behind a switch of its own: `crate::mutant::on(7)`.
//!
//! Changes are insertions that keep the lines, so that a mutant has the line of its file.

use std::collections::BTreeSet;
use std::ops::Range;

use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{
    Arm, Attribute, BinOp, Block, Expr, ExprAssign, ExprBinary, ExprConst, ExprIf, ExprMacro, ExprMatch,
    ExprMethodCall, ExprRepeat, ExprUnary, ExprWhile, GenericArgument, ImplItemConst, ImplItemFn, ItemConst, ItemFn,
    ItemMod, ItemStatic, Pat, PathArguments, ReturnType, Signature, Stmt, TraitItemConst, Type, TypeArray, UnOp,
    Variant,
};

/// One change, and where it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mutant {
    pub number: u32,
    pub line: usize,
    pub function: String,
    /// What is changed.
    pub change: String,
}

/// Returns the source with its mutants, which are numbered from `first` on. The lines of `left_out`
/// have none.
pub fn mutate(source: &str, first: u32, left_out: &BTreeSet<usize>) -> (String, Vec<Mutant>) {
    let file = syn::parse_file(source).expect("the source is Rust");
    let mut finder = Finder { source, next: first, left_out, functions: vec![], edits: vec![], mutants: vec![] };
    finder.visit_file(&file);
    (finder.written(), finder.mutants)
}

struct Finder<'a> {
    source: &'a str,
    next: u32,
    left_out: &'a BTreeSet<usize>,
    /// The functions around what is visited.
    functions: Vec<String>,
    /// Insertions: where, in which order if there are several, and what.
    edits: Vec<(usize, i64, String)>,
    mutants: Vec<Mutant>,
}

impl Finder<'_> {
    /// Returns the source with all insertions.
    fn written(&mut self) -> String {
        self.edits.sort();
        let mut text = String::new();
        let mut at = 0;
        for (place, _, insertion) in &self.edits {
            text.push_str(&self.source[at..*place]);
            text.push_str(insertion);
            at = *place;
        }
        text + &self.source[at..]
    }

    /// Numbers a mutant. Returns its switch.
    fn switch(&mut self, place: &impl Spanned, change: String) -> Option<String> {
        let line = place.span().start().line;
        if self.left_out.contains(&line) {
            return None;
        }
        let (number, function) = (self.next, self.functions.join("::"));
        self.next += 1;
        self.mutants.push(Mutant { number, line, function, change });
        Some(format!("crate::mutant::on({number})"))
    }

    /// Surrounds a place. What is visited later goes inside, because places are visited from the
    /// outside to the inside.
    fn surround(&mut self, range: Range<usize>, before: String, after: &str) {
        let order = i64::try_from(self.edits.len()).unwrap_or(i64::MAX);
        // At one place, ends come before starts, and the inner end comes first.
        self.edits.push((range.start, order, before));
        self.edits.push((range.end, i64::MIN + (i64::from(u32::MAX) - order), after.to_owned()));
    }

    /// Lets an expression have another one in its place.
    fn replace(&mut self, place: &Expr, other: &str) {
        // On one line, a comment would hide the code after it.
        if other.contains("//") && other.contains('\n') {
            return;
        }
        let range = place.span().byte_range();
        let (from, to) = (short(&self.source[range.clone()]), short(other));
        if let Some(switch) = self.switch(place, format!("{from} -> {to}")) {
            let other = other.replace('\n', " ");
            self.surround(range, format!("(if {switch} {{ {other} }} else {{ "), " })");
        }
    }

    fn text(&self, place: &impl Spanned) -> String {
        self.source[place.span().byte_range()].to_owned()
    }

    /// Lets a function return a constant at once.
    fn return_early(&mut self, signature: &Signature, block: &Block) {
        let ReturnType::Type(_, kind) = &signature.output else { return };
        for value in constants(kind) {
            // A function that does nothing else has no such mutant.
            if self.text(block).trim_matches(['{', '}', ' ', '\n']) == value {
                continue;
            }
            if let Some(switch) = self.switch(block, format!("returns {value}")) {
                let start = block.brace_token.span.open().byte_range().end;
                let order = i64::try_from(self.edits.len()).unwrap_or(i64::MAX);
                self.edits.push((start, order, format!(" if {switch} {{ return {value}; }}")));
            }
        }
    }

    fn function(&mut self, attributes: &[Attribute], signature: &Signature, block: &Block) {
        if signature.constness.is_some() || is_for_tests(attributes) {
            return;
        }
        self.functions.push(signature.ident.to_string());
        self.return_early(signature, block);
        self.visit_block(block);
        self.functions.pop();
    }

    /// Negates a condition that no other mutant negates.
    fn condition(&mut self, condition: &Expr) {
        let is_call = matches!(condition, Expr::MethodCall(_) | Expr::Call(_) | Expr::Path(_) | Expr::Field(_));
        if is_call {
            let text = self.text(condition);
            self.replace(condition, &format!("!({text})"));
        }
    }
}

impl<'a> Visit<'a> for Finder<'_> {
    fn visit_item_mod(&mut self, item: &'a ItemMod) {
        if !is_for_tests(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'a ItemFn) {
        self.function(&item.attrs, &item.sig, &item.block);
    }

    fn visit_impl_item_fn(&mut self, item: &'a ImplItemFn) {
        self.function(&item.attrs, &item.sig, &item.block);
    }

    // What the compiler evaluates cannot be switched.
    fn visit_item_const(&mut self, _: &'a ItemConst) {}
    fn visit_item_static(&mut self, _: &'a ItemStatic) {}
    fn visit_impl_item_const(&mut self, _: &'a ImplItemConst) {}
    fn visit_trait_item_const(&mut self, _: &'a TraitItemConst) {}
    fn visit_expr_const(&mut self, _: &'a ExprConst) {}
    fn visit_type_array(&mut self, _: &'a TypeArray) {}
    fn visit_variant(&mut self, _: &'a Variant) {}
    fn visit_pat(&mut self, _: &'a Pat) {}
    fn visit_attribute(&mut self, _: &'a Attribute) {}

    fn visit_expr_repeat(&mut self, expression: &'a ExprRepeat) {
        self.visit_expr(&expression.expr);
    }

    fn visit_expr(&mut self, expression: &'a Expr) {
        match expression {
            Expr::Binary(binary) => self.binary(expression, binary),
            Expr::Unary(ExprUnary { op: UnOp::Not(_), expr, .. }) => {
                let text = self.text(&**expr);
                self.replace(expression, &text);
            }
            Expr::Macro(ExprMacro { mac, .. }) if mac.path.is_ident("matches") => {
                let text = self.text(expression);
                self.replace(expression, &format!("!{text}"));
            }
            Expr::MethodCall(call) => self.method(expression, call),
            _ => {}
        }
        visit::visit_expr(self, expression);
    }

    fn visit_expr_if(&mut self, expression: &'a ExprIf) {
        self.condition(&expression.cond);
        visit::visit_expr_if(self, expression);
    }

    fn visit_expr_while(&mut self, expression: &'a ExprWhile) {
        self.condition(&expression.cond);
        visit::visit_expr_while(self, expression);
    }

    fn visit_expr_match(&mut self, expression: &'a ExprMatch) {
        let has_rest = expression.arms.last().is_some_and(|arm| matches!(arm.pat, Pat::Wild(_)) && arm.guard.is_none());
        let last = expression.arms.len().saturating_sub(1);
        for (at, Arm { pat, guard, .. }) in expression.arms.iter().enumerate() {
            match guard {
                Some((_, guard)) => {
                    let text = short(&self.text(&**guard));
                    let always = self.switch(&**guard, format!("if {text} -> if true"));
                    let never = self.switch(&**guard, format!("if {text} -> if false"));
                    if let (Some(always), Some(never)) = (always, never) {
                        let before = format!("(({always}) || (");
                        self.surround(guard.span().byte_range(), before, &format!(")) && !{never}"));
                    }
                }
                None if has_rest && at < last => {
                    let text = short(&self.text(pat));
                    if let Some(switch) = self.switch(pat, format!("without the arm {text}")) {
                        let end = pat.span().byte_range().end;
                        self.surround(end..end, String::new(), &format!(" if !{switch}"));
                    }
                }
                None => {}
            }
        }
        visit::visit_expr_match(self, expression);
    }

    fn visit_stmt(&mut self, statement: &'a Stmt) {
        let is_effect = |expression: &Expr| match expression {
            Expr::MethodCall(_) | Expr::Call(_) => true,
            Expr::Assign(ExprAssign { left, .. }) => matches!(**left, Expr::Field(_) | Expr::Index(_)),
            Expr::Binary(ExprBinary { op, .. }) => other_assignment(op).is_some(),
            _ => false,
        };
        if let Stmt::Expr(expression, Some(_)) = statement
            && is_effect(expression)
        {
            let text = short(&self.text(expression));
            if let Some(switch) = self.switch(expression, format!("without {text}")) {
                self.surround(statement.span().byte_range(), format!("if !{switch} {{ "), " }");
            }
        }
        visit::visit_stmt(self, statement);
    }
}

impl Finder<'_> {
    fn binary(&mut self, expression: &Expr, binary: &ExprBinary) {
        let (left, right) = (self.text(&*binary.left), self.text(&*binary.right));
        if has_let(expression) {
            return;
        }
        // Texts are added, too, and have no other operator.
        let is_text = [&left, &right].iter().any(|side| side.contains('"') || side.contains("String"));
        let others: &[&str] = match binary.op {
            BinOp::Eq(_) => &["!="],
            BinOp::Ne(_) => &["=="],
            BinOp::Lt(_) => &["<=", ">="],
            BinOp::Le(_) => &["<", ">"],
            BinOp::Gt(_) => &[">=", "<="],
            BinOp::Ge(_) => &[">", "<"],
            BinOp::And(_) => &["||"],
            BinOp::Or(_) => &["&&"],
            BinOp::Add(_) if !is_text => &["-"],
            BinOp::Sub(_) => &["+"],
            BinOp::Mul(_) => &["/"],
            BinOp::Div(_) => &["*"],
            BinOp::Rem(_) => &["*"],
            _ => &[],
        };
        for other in others {
            self.replace(expression, &format!("{left} {other} {right}"));
        }
        if let Some(other) = other_assignment(&binary.op).filter(|_| !is_text) {
            self.replace(expression, &format!("{left} {other} {right}"));
        }
    }

    fn method(&mut self, expression: &Expr, call: &ExprMethodCall) {
        let other = match call.method.to_string().as_str() {
            "min" => "max",
            "max" => "min",
            "any" => "all",
            "all" => "any",
            "saturating_add" => "saturating_sub",
            "saturating_sub" => "saturating_add",
            _ => return,
        };
        if call.args.len() != 1 {
            return;
        }
        let (whole, name) = (expression.span().byte_range(), call.method.span().byte_range());
        let text = format!("{}{other}{}", &self.source[whole.start..name.start], &self.source[name.end..whole.end]);
        self.replace(expression, &text);
    }
}

fn other_assignment(op: &BinOp) -> Option<&'static str> {
    match op {
        BinOp::AddAssign(_) => Some("-="),
        BinOp::SubAssign(_) => Some("+="),
        _ => None,
    }
}

/// Returns whether a condition has a `let`, which is bound to its place.
fn has_let(expression: &Expr) -> bool {
    match expression {
        Expr::Let(_) => true,
        Expr::Binary(ExprBinary { left, op: BinOp::And(_), right, .. }) => has_let(left) || has_let(right),
        _ => false,
    }
}

fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        syn::Meta::List(list) if list.path.is_ident("cfg") => list.tokens.to_string().contains("test"),
        meta => meta.path().is_ident("test"),
    })
}

/// Returns constants of a type that most functions may not always return.
fn constants(kind: &Type) -> Vec<&'static str> {
    let Some((name, inner)) = name_of(kind) else { return Vec::new() };
    match (name.as_str(), inner.as_deref()) {
        ("bool", _) => vec!["true", "false"],
        ("Option", _) => vec!["None"],
        ("String", _) => vec!["String::new()"],
        ("Vec", _) => vec!["Vec::new()"],
        ("u8" | "u16" | "u32" | "u64" | "usize" | "i32" | "i64", _) => vec!["0", "1"],
        ("Result", Some("bool")) => vec!["Ok(true)", "Ok(false)"],
        ("Result", Some("Option")) => vec!["Ok(None)"],
        ("Result", Some("()")) => vec!["Ok(())"],
        _ => Vec::new(),
    }
}

/// Returns the name of a type and of its first argument.
fn name_of(kind: &Type) -> Option<(String, Option<String>)> {
    match kind {
        Type::Path(path) => {
            let last = path.path.segments.last()?;
            let inner = match &last.arguments {
                PathArguments::AngleBracketed(arguments) => match arguments.args.first() {
                    Some(GenericArgument::Type(inner)) => name_of(inner).map(|(name, _)| name),
                    _ => None,
                },
                _ => None,
            };
            Some((last.ident.to_string(), inner))
        }
        Type::Tuple(tuple) if tuple.elems.is_empty() => Some(("()".to_owned(), None)),
        _ => None,
    }
}

/// Returns a text in one line, and only its beginning.
fn short(text: &str) -> String {
    let words: Vec<_> = text.split_whitespace().collect();
    let line = words.join(" ");
    match line.char_indices().nth(70) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changes(source: &str) -> Vec<String> {
        let (_, mutants) = mutate(source, 0, &BTreeSet::new());
        mutants.into_iter().map(|mutant| format!("{}:{} {}", mutant.line, mutant.function, mutant.change)).collect()
    }

    #[test]
    fn an_operator_a_condition_an_arm_a_statement_and_a_result_have_mutants() {
        let source = "fn f(a: u32) -> bool {\n    g();\n    match a {\n        1 => a < 2,\n        n if h(n) => !k(),\n        _ => if p() { true } else { false },\n    }\n}\n";
        assert_eq!(
            changes(source),
            [
                "1:f returns true",
                "1:f returns false",
                "2:f without g()",
                "4:f without the arm 1",
                "5:f if h(n) -> if true",
                "5:f if h(n) -> if false",
                "4:f a < 2 -> a <= 2",
                "4:f a < 2 -> a >= 2",
                "5:f !k() -> k()",
                "6:f p() -> !(p())",
            ]
        );
    }

    #[test]
    fn what_the_compiler_evaluates_and_what_tests_do_has_none() {
        let source = "const A: u32 = 1 + 2;\nconst fn f() -> u32 { 1 + 2 }\n#[cfg(test)]\nmod tests { fn f() -> u32 { 1 + 2 } }\n";
        assert_eq!(changes(source), Vec::<String>::new());
    }

    #[test]
    fn a_let_keeps_its_place() {
        assert_eq!(
            changes("fn f() { if let Some(a) = b() && a > 1 { } }"),
            ["1:f a > 1 -> a >= 1", "1:f a > 1 -> a <= 1"]
        );
    }

    #[test]
    fn mutants_keep_the_lines_and_stand_inside_each_other() {
        let (text, mutants) = mutate("fn f() -> u32 {\n    1 + 2 *\n        3\n}\n", 7, &BTreeSet::new());
        assert_eq!(mutants.len(), 4);
        assert_eq!(text.lines().count(), 4);
        assert!(
            text.contains("(if crate::mutant::on(9) { 1 - 2 *         3 } else { 1 + (if crate::mutant::on(10)"),
            "{text}"
        );
        syn::parse_file(&text).expect("it is Rust");
    }

    #[test]
    fn lines_are_left_out() {
        let (_, mutants) = mutate("fn f() {\n    g();\n    h();\n}\n", 0, &BTreeSet::from([2]));
        assert_eq!(mutants.len(), 1);
    }
}
