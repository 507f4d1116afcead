package layout

import (
	"fmt"
	"strconv"
	"strings"
)

// A pattern matches tensor names: # is a decimal number, * any characters but a dot, ** any
// characters; all other characters stand for themselves. A match captures what each wildcard has
// matched. Nothing changes a pattern after parsePattern, so any goroutine may use it.
type pattern struct {
	text   string
	tokens []token
}

// A token is a wildcard of a pattern, or the text between two.
type token struct {
	kind tokenKind
	text string // text of a literal, or the wildcard itself
}

// A tokenKind says what a token matches.
type tokenKind uint8

const (
	literal  tokenKind = iota
	number             // #
	segment            // *
	anything           // **
)

// maxWildcards bounds the work of a match.
const maxWildcards = 8

// NewMatcher returns a function that reports whether a name matches a pattern, with the wildcards
// of rules. Any goroutine may call it.
func NewMatcher(text string) (func(name string) bool, error) {
	p, err := parsePattern(text)
	if err != nil {
		return nil, fmt.Errorf("layout: %w", err)
	}
	return func(name string) bool {
		_, ok := p.match(name)
		return ok
	}, nil
}

// parsePattern reads a pattern, and fails for an empty one and for too many wildcards.
func parsePattern(text string) (pattern, error) {
	p := pattern{text: text}
	for rest := text; rest != ""; {
		kind, n := literal, strings.IndexAny(rest, "#*")
		switch {
		case n < 0:
			n = len(rest)
		case n > 0:
		case rest[0] == '#':
			kind, n = number, 1
		case strings.HasPrefix(rest, "**"):
			kind, n = anything, 2
		default:
			kind, n = segment, 1
		}
		p.tokens = append(p.tokens, token{kind, rest[:n]})
		rest = rest[n:]
	}
	if text == "" {
		return p, fmt.Errorf("an empty pattern matches nothing; ** matches every tensor")
	}
	if n := len(p.wildcardKinds()); n > maxWildcards {
		return p, fmt.Errorf("pattern %q has %d wildcards, more than %d", text, n, maxWildcards)
	}
	return p, nil
}

// wildcardKinds returns the kinds of the wildcards in order.
func (p pattern) wildcardKinds() (kinds []tokenKind) {
	for _, t := range p.tokens {
		if t.kind != literal {
			kinds = append(kinds, t.kind)
		}
	}
	return kinds
}

// match returns what the wildcards captured, the shortest possible text for each from the left;
// false if the name does not match.
func (p pattern) match(name string) (caught []string, ok bool) {
	first, last := p.tokens[0], p.tokens[len(p.tokens)-1]
	if first.kind == literal && !strings.HasPrefix(name, first.text) ||
		last.kind == literal && !strings.HasSuffix(name, last.text) {
		return nil, false
	}
	m := matcher{tokens: p.tokens, name: name, failed: make([]bool, len(p.tokens)*(len(name)+1))}
	if !m.matchFrom(0, 0) {
		return nil, false
	}
	return m.caught, true
}

// A matcher tries each token at each position at most once. It does no I/O, and is for the
// goroutine of one call of match.
type matcher struct {
	tokens []token
	name   string
	caught []string // what the wildcards have captured so far
	failed []bool   // by token and position, whether the match fails from there on
}

// matchFrom reports whether the tokens from t on match the name from at on, and adds what they
// captured to caught.
func (m *matcher) matchFrom(t, at int) bool {
	if t == len(m.tokens) {
		return at == len(m.name)
	}
	mark := t*(len(m.name)+1) + at
	if m.failed[mark] {
		return false
	}
	rest := m.name[at:]
	switch tok := m.tokens[t]; tok.kind {
	case literal:
		if strings.HasPrefix(rest, tok.text) && m.matchFrom(t+1, at+len(tok.text)) {
			return true
		}
	case number: // takes all consecutive digits: 12 is not 1 and a literal 2
		n := len(rest) - len(strings.TrimLeft(rest, "0123456789"))
		if n > 0 && m.tryWildcard(t, at, n) {
			return true
		}
	default:
		for n := 0; n <= len(rest); n++ {
			if m.tryWildcard(t, at, n) {
				return true
			}
			if n < len(rest) && rest[n] == '.' && tok.kind == segment {
				break
			}
		}
	}
	m.failed[mark] = true
	return false
}

// tryWildcard reports whether the name matches if the wildcard t captures n characters from at on.
func (m *matcher) tryWildcard(t, at, n int) bool {
	m.caught = append(m.caught, m.name[at:at+n])
	if m.matchFrom(t+1, at+n) {
		return true
	}
	m.caught = m.caught[:len(m.caught)-1]
	return false
}

// fill returns the pattern with its wildcards replaced by texts, of which there are as many.
func (p pattern) fill(caught []string) string {
	var b strings.Builder
	for _, t := range p.tokens {
		if t.kind == literal {
			b.WriteString(t.text)
			continue
		}
		b.WriteString(caught[0])
		caught = caught[1:]
	}
	return b.String()
}

// capturedNumbers returns the numbers that the # of the pattern captured, among what all its
// wildcards captured.
func (p pattern) capturedNumbers(caught []string) ([]int, error) {
	var found []int
	for i, kind := range p.wildcardKinds() {
		if kind == number {
			n, err := strconv.Atoi(caught[i])
			if err != nil {
				return nil, fmt.Errorf("the number %s is too large", caught[i])
			}
			found = append(found, n)
		}
	}
	return found, nil
}
