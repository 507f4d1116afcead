// Package web is the page of a run: HTML, one script and one style sheet, as web/_build makes them
// of the sources there. Package dash serves them, and puts them into reports.
package web

import "embed"

//go:generate go -C _build run .

// Files are the files of the page, in folder dist.
//
//go:embed dist
var Files embed.FS
