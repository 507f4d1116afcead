// Package pattern has regular expressions that are compiled when they are first used. A command of
// shoal uses few of those in it, and to compile all of them at its start takes milliseconds.
package pattern

import (
	"regexp"
	"sync"
)

// Pattern is a regular expression. New makes it; any goroutine may use it. Its methods are those of
// regexp.Regexp, and panic where the text is none.
type Pattern struct{ compiled func() *regexp.Regexp }

// New returns the regular expression that a text is, and does not look at the text yet.
func New(text string) *Pattern {
	return &Pattern{sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(text) })}
}

// MatchString reports whether s contains a match.
func (p *Pattern) MatchString(s string) bool { return p.compiled().MatchString(s) }

// FindString returns the first match in s; "" = there is none.
func (p *Pattern) FindString(s string) string { return p.compiled().FindString(s) }

// FindStringSubmatch returns the first match in s and what its groups match; nil = there is none.
func (p *Pattern) FindStringSubmatch(s string) []string {
	return p.compiled().FindStringSubmatch(s)
}

// FindSubmatch is FindStringSubmatch for bytes, of which it returns parts.
func (p *Pattern) FindSubmatch(b []byte) [][]byte { return p.compiled().FindSubmatch(b) }

// ReplaceAllString returns src with to, in which $1 is a group, in place of each match.
func (p *Pattern) ReplaceAllString(src, to string) string {
	return p.compiled().ReplaceAllString(src, to)
}
