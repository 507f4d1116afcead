// Package spelling finds the name that somebody may have meant.
package spelling

import "strings"

// The functions are pure, so any goroutine may call them.

// longest is how many bytes a word has at most for which names with other letters are looked at.
const longest = 100

// Nearest returns the name that starts with word, else the one with the smallest edit distance, the
// first of several; "" when none is nearer than about a third of the letters of word, or where word
// is longer than anybody types.
func Nearest(word string, names []string) string {
	best, least := "", len(word)/3+2
	for _, name := range names {
		if strings.HasPrefix(name, word) {
			return name
		}
		if len(word) > longest || len(name) > len(word)+least {
			continue // each letter too many counts
		}
		if d := distance(word, name); d < least {
			best, least = name, d
		}
	}
	return best
}

// Meant returns a question in brackets for behind a word that is none of some names, such as " (did
// you mean ssgd?)"; "" when none of them is near, or there is no word.
func Meant(word string, names []string) string {
	if near := Nearest(word, names); near != "" && word != "" {
		return " (did you mean " + near + "?)"
	}
	return ""
}

// distance counts the letters to insert, delete, replace or swap with their neighbour to get from a
// to b (optimal string alignment).
func distance(a, b string) int {
	d := make([][]int, len(a)+1)
	for i := range d {
		d[i] = make([]int, len(b)+1)
		d[i][0] = i
	}
	for j := range d[0] {
		d[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			change := 1
			if a[i-1] == b[j-1] {
				change = 0
			}
			d[i][j] = min(d[i-1][j]+1, d[i][j-1]+1, d[i-1][j-1]+change)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				d[i][j] = min(d[i][j], d[i-2][j-2]+1)
			}
		}
	}
	return d[len(a)][len(b)]
}
