// Package nodelist reads lists of nodes as Slurm writes them, such as n[1-3,07] or
// login,rack[0-1]n[08-11]. It does no I/O, and its functions change nothing.
package nodelist

import (
	"fmt"
	"strconv"
	"strings"
)

// Most bounds how many nodes a list may have.
const Most = 1 << 16

// maxDigits bounds the digits of a number in brackets.
const maxDigits = 9

// Expand returns the names of the nodes in a list, in its order. The list has names with commas
// between them, and a name can have numbers and ranges of numbers in brackets, in several places. A
// number keeps the zeros before it: n[08-10] are n08, n09 and n10. An error says what is wrong with
// the list, where, and how it is written.
func Expand(list string) ([]string, error) {
	if strings.TrimSpace(list) == "" {
		return nil, fmt.Errorf("a list of nodes without a node; it is written as n[1-3,07]")
	}
	var nodes []string
	for _, part := range split(list) {
		more, err := expandPart(part, Most-len(nodes))
		if err != nil {
			return nil, fmt.Errorf("the list of nodes %.200q: %w", list, err)
		}
		nodes = append(nodes, more...)
	}
	return nodes, nil
}

// split returns the parts of a list between the commas that are in no brackets.
func split(list string) (parts []string) {
	begin, open := 0, false
	for i, c := range []byte(list) {
		switch {
		case c == '[':
			open = true
		case c == ']':
			open = false
		case c == ',' && !open:
			parts = append(parts, list[begin:i])
			begin = i + 1
		}
	}
	return append(parts, list[begin:])
}

// expandPart returns the names that a part of a list stands for, at most so many.
func expandPart(part string, most int) ([]string, error) {
	names := []string{""}
	for rest := part; rest != ""; {
		plain, brackets, is := strings.Cut(rest, "[")
		if err := checkName(plain); err != nil {
			return nil, err
		}
		inside, after := "", ""
		if is {
			var closed bool
			if inside, after, closed = strings.Cut(brackets, "]"); !closed {
				return nil, fmt.Errorf("%.80q has [ without ]", part)
			}
		}
		numbers := []string{""}
		if is {
			var err error
			if numbers, err = expandNumbers(inside, most); err != nil {
				return nil, err
			}
		}
		if len(names)*len(numbers) > most {
			return nil, fmt.Errorf("%.80q stands for more than %d nodes", part, Most)
		}
		var longer []string
		for _, name := range names {
			for _, number := range numbers {
				longer = append(longer, name+plain+number)
			}
		}
		names, rest = longer, after
	}
	if names[0] == "" || most < 1 {
		return nil, fmt.Errorf("a name is empty, or there are more than %d", Most)
	}
	return names, nil
}

// checkName returns what is wrong with a piece of the name of a node; nil = nothing.
func checkName(piece string) error {
	for _, c := range []byte(piece) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '-', c == '_',
			c == '.':
		default:
			return fmt.Errorf("%.80q has a %q, which no name of a node has", piece, c)
		}
	}
	return nil
}

// expandNumbers returns the numbers between two brackets, such as 1-3,07, as they are written; at
// most so many.
func expandNumbers(inside string, most int) (numbers []string, err error) {
	for word := range strings.SplitSeq(inside, ",") {
		from, to, isRange := strings.Cut(word, "-")
		if !isRange {
			to = from
		}
		first, err := parseNumber(from)
		if err != nil {
			return nil, err
		}
		last, err := parseNumber(to)
		if err != nil {
			return nil, err
		}
		switch {
		case last < first:
			return nil, fmt.Errorf("the range %.40q goes down", word)
		case last-first >= most-len(numbers):
			return nil, fmt.Errorf("the range %.40q makes more than %d nodes", word, Most)
		case len(to) < len(from) || to[0] == '0' && len(to) != len(from):
			return nil, fmt.Errorf("the numbers of %.40q are not written with as many zeros", word)
		}
		for n := first; n <= last; n++ {
			text := strconv.Itoa(n)
			numbers = append(numbers, strings.Repeat("0", max(len(from)-len(text), 0))+text)
		}
	}
	return numbers, nil
}

// parseNumber returns the value of a number of up to nine digits.
func parseNumber(text string) (int, error) {
	if text == "" || len(text) > maxDigits || strings.Trim(text, "0123456789") != "" {
		return 0, fmt.Errorf("%.40q is no number of up to %d digits", text, maxDigits)
	}
	return strconv.Atoi(text)
}
