#!/usr/bin/env python3
"""Tests the changes that generate.py and dropped.py make in short texts."""

import unittest

from dropped import woven
from generate import Source


def names(body):
    return [change.name().removeprefix("f: ") for change in Source(f"fn f() {{ {body} }}").changes()]


class Changes(unittest.TestCase):
    def test_a_check(self):
        self.assertCountEqual(names("if a { b } else { c }"), ["never if a", "always if a"])
        self.assertCountEqual(names("let x = a == b && !c(d);"), ["never a == b && !c(d)", "without a == b", "without !c(d)"])
        self.assertCountEqual(names("if a || b >= c { d }"), ["without a", "without b >= c"])
        self.assertCountEqual(names("g(a || b, c)"), ["without a", "without b"])
        self.assertCountEqual(names("a.then_some(b)"), ["never a", "always a"])
        self.assertCountEqual(names("X { field: a.then(|| b) }"), ["never a", "always a"])
        self.assertCountEqual(names("i.filter(|x| x > y)"), ["filter nothing, not x > y", "filter anything, not only x > y"])

    def test_a_name_that_a_condition_gives_stays(self):
        self.assertCountEqual(names("if let Some(x) = y && x > z { w }"), ["never x > z", "without x > z"])
        self.assertCountEqual(names("if let A { b } = c { d }"), [])

    def test_a_bound(self):
        self.assertCountEqual(names("a.b().min(c)"), ["without the bound of a.b().min(c)"])
        self.assertCountEqual(names("x[..a.max(b)]"), ["without the bound of a.max(b)"])
        self.assertCountEqual(names("i.iter().max()"), [])

    def test_a_statement(self):
        self.assertCountEqual(names("self.a.b(c)?; d = e; *f |= g;"), ["without self.a.b(c)?;", "without d = e;", "without *f |= g;"])
        self.assertCountEqual(names("let a = b(); return c; assert!(d); e += 1; loop { break; }"), [])

    def test_what_is_no_code(self):
        self.assertCountEqual(names('// a && b\n g("c && d", \'"\', "e");'), ['without g("c && d", \'"\', "e");'])
        self.assertEqual(Source("#[cfg(test)] mod tests { fn f() { g(); } } const A: u8 = 1;").changes(), [])

    def test_equal_ones_have_different_names(self):
        self.assertCountEqual(names("a(); a();"), ["without a();", "without a(); (number 2)"])

    def test_each_acts_by_its_number(self):
        text = "fn f() { if a && b.min(c) > d { g(); } }"
        new, places = woven(text, list(enumerate(Source(text).changes(), 1)))
        for start, end, number in places:
            self.assertIn(f"crate::mutant({number})", new[start:end])
        self.assertEqual(new.count("crate::mutant("), len(places))
        for opening, closing in ("()", "{}"):
            self.assertEqual(new.count(opening), new.count(closing))


if __name__ == "__main__":
    unittest.main()
