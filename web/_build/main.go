// Command _build makes the page of package web from its sources in src:
//
//	go run .          writes web/dist
//	go run . -check   compares instead, and says what is not as it would be made
//
// It needs npm, which brings preact, uPlot and the compiler of TypeScript in the versions of
// package-lock.json into build/web. What npm has installed is not executed but for the compiler,
// which checks types; esbuild, as a package of Go, makes the bundle.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/evanw/esbuild/pkg/api"
)

// modules is where npm installs: a folder that git ignores.
const modules = "../../build/web"

// limit is how many bytes the page has at most, of all files together.
const limit = 300_000

// main makes the page, or checks it, and exits with 1 where that fails.
func main() {
	check := flag.Bool("check", false, "compare with web/dist, and write nothing")
	flag.Parse()
	if err := run(*check); err != nil {
		fmt.Fprintln(os.Stderr, "web:", err)
		os.Exit(1)
	}
}

// run makes the page, or checks it.
func run(check bool) error {
	if err := install(); err != nil {
		return err
	}
	if out, err := exec.Command(filepath.Join(modules, "node_modules/.bin/tsc"),
		"-p", ".").CombinedOutput(); err != nil {
		return fmt.Errorf("types: %w\n%s", err, out)
	}
	files, err := bundle()
	if err != nil {
		return err
	}
	total := 0
	for _, text := range files {
		total += len(text)
	}
	if total > limit {
		return fmt.Errorf("the page has %d bytes; the limit is %d", total, limit)
	}
	var wrong []error
	for name, text := range files {
		path := filepath.Join("../dist", name)
		if !check {
			err = os.WriteFile(path, text, 0o644)
		} else if old, read := os.ReadFile(path); read != nil || !bytes.Equal(old, text) {
			err = fmt.Errorf("web/dist/%s is not what web/_build makes: run go run . there", name)
		}
		wrong = append(wrong, err)
		err = nil
	}
	return errors.Join(wrong...)
}

// install has npm install what package-lock.json says, unless that is there.
func install() error {
	lock, err := os.ReadFile("package-lock.json")
	if err != nil {
		return err
	}
	stamp := filepath.Join(modules, "installed.json")
	if done, err := os.ReadFile(stamp); err == nil && bytes.Equal(done, lock) {
		return nil
	}
	if err := os.MkdirAll(modules, 0o755); err != nil {
		return err
	}
	for _, name := range []string{"package.json", "package-lock.json"} {
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(modules, name), text, 0o644); err != nil {
			return err
		}
	}
	npm := exec.Command("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
	npm.Dir = modules
	if out, err := npm.CombinedOutput(); err != nil {
		return fmt.Errorf("npm ci: %w\n%s", err, out)
	}
	return os.WriteFile(stamp, lock, 0o644)
}

// bundle returns the files of the page by their names.
func bundle() (map[string][]byte, error) {
	result := api.Build(api.BuildOptions{
		EntryPoints: []string{"src/page.tsx"}, Bundle: true, Outdir: "out",
		MinifyWhitespace: true, MinifyIdentifiers: true, MinifySyntax: true,
		Target: api.ES2022, Format: api.FormatIIFE, Charset: api.CharsetUTF8,
		JSXFactory: "h", JSXFragment: "Fragment", LegalComments: api.LegalCommentsEndOfFile,
		NodePaths:   []string{filepath.Join(modules, "node_modules")},
		TsconfigRaw: "{}",
	})
	var faults []string
	for _, m := range result.Errors {
		faults = append(faults, m.Text)
	}
	if faults != nil {
		return nil, errors.New(strings.Join(faults, "\n"))
	}
	html, err := os.ReadFile("src/index.html")
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{"index.html": html}
	for _, name := range []string{"preact", "uplot"} {
		text, err := os.ReadFile(filepath.Join(modules, "node_modules", name, "LICENSE"))
		if err != nil {
			return nil, err
		}
		files["licenses.txt"] = fmt.Appendf(files["licenses.txt"], "%s\n\n%s\n", name, text)
	}
	for _, f := range result.OutputFiles {
		files[filepath.Base(f.Path)] = f.Contents
	}
	return files, nil
}
