package lint

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// house is a small tree that keeps every rule.
var house = map[string]string{
	"go.mod": "module github.com/shoal-ml/shoal\n\ngo 1.26.0\n\nrequire " +
		"(\n\texample.org/tool v1.0.0\n\texample.org/far v1.0.0 // indirect\n)\n",
	"docs/dependencies.md": "# Dependencies\n\n## example.org/tool\n\nBecause.\n",
	"ARCHITECTURE.md": "| folder | what |\n|---|---|\n| `tensor/` | t |\n| `kernel/`, " +
		"`cmd/shoal/` | k |\n\n## W\n\n1. `kernel` has `tensor`.\n",
	"tensor/tensor.go": "// Package tensor is arrays.\npackage tensor\n",
	"kernel/kernel.go": "// Package kernel adds.\npackage kernel\n\nimport _ " +
		"\"github.com/shoal-ml/shoal/tensor\"\n",
	"cmd/shoal/main.go": "// Command shoal trains.\npackage main\n\nimport _ " +
		"\"github.com/shoal-ml/shoal/kernel\"\n\nfunc main() {}\n",
}

const houseWords = "gizmo -> part\ntensor: beside, rest -> extras\n"

const houseLayers = "NONE < tensor\ntensor < kernel\nkernel < cmd/shoal\nos, cmd/* !< tensor, " +
	"kernel: pure rooms\n"

// broken lists, for every rule, files that are added to the house and a part of what the rule must
// then say. An empty text takes the file away.
var broken = []struct {
	rule  string
	files map[string]string
	want  string
}{
	{"syntax", map[string]string{"tensor/b.go": "package tensor\n\nfunc {"},
		"tensor/b.go: does not parse"},
	{"format", map[string]string{"tensor/b.go": "package tensor\nvar   X = 1\n"},
		"tensor/b.go: not in gofmt's form"},

	{"layers", map[string]string{"new/a.go": "// Package new is new.\npackage new\n"},
		"new: no floor of its own"},
	{"layers", map[string]string{"tensor/b.go": importFile("tensor", Module+"/kernel")},
		"tensor: imports kernel, which does not lie below"},
	{"layers", map[string]string{"kernel/b.go": importFile("kernel", "os")},
		"kernel: imports os, which layers.txt:4 bans: pure rooms"},
	{"layers", map[string]string{"tensor/b.go": importFile("tensor", "os")},
		"kernel: imports tensor, which imports os, which"},
	{"layers", map[string]string{"kernel/kernel.go": ""}, "places kernel, which does not exist"},

	{"folder-cycles", map[string]string{
		"tensor/box/a.go": importFile("box", Module+"/kernel"),
	}, "folders import each other in a circle: kernel -> tensor -> kernel"},
	{"folder-cycles", map[string]string{
		"act/move/a.go":    importFile("move", Module+"/act/check/b"),
		"act/check/a.go":   importFile("check", Module+"/act/move"),
		"act/check/b/b.go": "// Package b is below.\npackage b\n",
	}, "act: folders import each other in a circle: check -> move -> check"},

	{"folder-names", map[string]string{
		"tensor/util/a.go": "// Package util is a bag.\npackage util\n"},
		`tensor/util: "util" says nothing`},
	{"folder-names", map[string]string{"python/shoal/helpers.py": "\n"},
		`python/shoal/helpers.py: "helpers" says nothing`},
	{"stray-files", map[string]string{"tensor/.partial/journal": "x\n"},
		"tensor/.partial/journal: a hidden file below the root"},
	{"stray-files", map[string]string{"tensor/model.safetensors": "a\x00b"},
		"tensor/model.safetensors: a binary file among sources"},

	{"package-comments", map[string]string{"tensor/tensor.go": "package tensor\n"},
		"tensor: no file of this package"},
	{"package-comments",
		map[string]string{"tensor/b.go": "// Package tensor is more.\npackage tensor\n"},
		"a second package comment"},
	{"package-comments",
		map[string]string{"tensor/tensor.go": "// Copyright of somebody.\npackage tensor\n"},
		"tensor/tensor.go:1: the package comment starts with"},
	{"package-comments",
		map[string]string{"cmd/shoal/main.go": "// Package main is main.\npackage main\n"},
		"cmd/shoal/main.go:1: the package comment"},

	{"code-map", map[string]string{"new/a.go": "// Package new is new.\npackage new\n"},
		"new/ is not on the map"},
	{"code-map", map[string]string{"ARCHITECTURE.md": "| `old/` | gone |\n"},
		"old/ is on the map of the code but not in the tree"},
	{"code-map", map[string]string{"ARCHITECTURE.md": "`tensor/old.go` adds.\n"},
		"tensor/old.go is named and not in the tree"},
	{"code-map", map[string]string{"ARCHITECTURE.md": "What `tensor/old` adds.\n"},
		"tensor/old is named and not in the tree"},
	{"code-map", map[string]string{"ARCHITECTURE.md": "| `tensor/` | `old.go` adds |\n"},
		"old.go is named and not in tensor"},
	{"walks", walkPage("1. `tensor` is read by\n   `kernel/kernel.go`.\n"),
		"the walk «W» goes up in step 1, from tensor to kernel, which no room before may import"},
	{"walks", walkPage("1. `kernel` has `tensor`.\n2. `kernel` ends.\n"),
		"goes up in step 2, from tensor to kernel, which was passed before"},
	{"walks", walkPage("1. `tensor`.\n2. **Back**: `kernel`.\n3. **Back**: `cmd/shoal`.\n"),
		"turns 2 times"},
	{"walks", walkPage("1. `kernel`.\n2. `python/shoal/a.py`.\n"), "which is a program of users"},
	{"walks", walkPage("1. `python/shoal/a.py` `python/a/a.py` `python/b/a.py` " +
		"`python/c/a.py` `python/d/a.py` `python/e/a.py` `python/f/a.py` `python/g/a.py` " +
		"`python/h/a.py`.\n"), "passes 9 rooms, the limit is 8"},
	{"walks", walkPage("- `kernel` has `tensor`.\n"), "0 sections have a numbered list"},
	{"walks", walkPage("1. `kernel` has `tensor`.\n\n## V\n\n1. `kernel` has `tensor`.\n"),
		"2 sections have a numbered list"},

	{"links", map[string]string{
		"docs/a.md": "# A\n\nSee [the tools](dependencies.md#tools) and\n[more](b.md \"B\").\n"},
		"docs/a.md:4: the link to b.md leads nowhere"},
	{"links", map[string]string{"README.md": "![kernels](kernel) [b](/docs/b.md)\n"},
		"README.md:1: the link to /docs/b.md leads nowhere"},
	{"contents", map[string]string{"docs/b/README.md": "See [a](a.md).\n", "docs/b/a.md": "A\n",
		"docs/b/c.md": "C\n"}, "docs/b/README.md: there is no link to c.md"},

	{"file-size", map[string]string{"tensor/b.go": "package tensor\n" +
		strings.Repeat("\n", FileLines)}, "501 lines, the limit is 500"},
	{"file-size", map[string]string{"python/shoal/a.py": strings.Repeat("\n", FileLines+1)},
		"python/shoal/a.py: 501 lines"},
	{"function-size", map[string]string{"tensor/b.go": "package tensor\n\nfunc F() {\n" +
		strings.Repeat("\n", FunctionLines) + "}\n"}, "tensor/b.go:3: func F has 72 lines"},
	{"package-size", map[string]string{"tensor/b.go": "package tensor\n" +
		strings.Repeat("\n", PackageLines)}, "tensor: 6003 lines, the limit of a package is 6000"},
	{"package-size", numberedFiles("python/shoal/m%d.py", FolderFiles+1),
		"python/shoal: 41 source files, the limit of a folder is 40"},
	{"struct-size", map[string]string{"tensor/b.go": "package tensor\n\ntype wide struct{ x0" +
		strings.Repeat(", x", StructFields) + " int }\n"}, "struct wide has 26 fields"},
	{"columns", map[string]string{"tensor/b.go": "package tensor\n\n//" +
		strings.Repeat(" x", Columns/2) + "\n"}, "tensor/b.go:3: 102 columns, the limit is 100"},
	{"columns", map[string]string{"tensor/b.go": "package tensor\n\nfunc f() {\n\t" +
		strings.Repeat("x", Columns-TabColumns-1) + "()\n}\n"}, "tensor/b.go:4: 101 columns"},
	{"columns", map[string]string{"docs/a.md": strings.Repeat("x ", Columns) + "\n"},
		"docs/a.md:1: 200 columns"},
	{"doc-comments", map[string]string{"tensor/b.go": "package tensor\n\nfunc F() {}\n"},
		"tensor/b.go:3: F has no comment"},
	{"doc-comments", map[string]string{"tensor/b.go": "package tensor\n\n// Fs are what.\n" +
		"type F int\n"}, "tensor/b.go:4: the comment of F does not begin with its name"},
	{"doc-comments", map[string]string{"tensor/b.go": "package tensor\n\n// F counts.\n" +
		"type F int\n\nfunc (*F) Next() {}\n"}, "tensor/b.go:6: Next has no comment"},
	{"doc-comments", map[string]string{
		"tensor/b.go": "package tensor\n\n// g adds.\nfunc f() {}\n"},
		`tensor/b.go:4: the comment of f begins with "g"`},
	{"words", map[string]string{"tensor/b.go": "package tensor\n\nvar lastGizmo int\n"},
		`tensor/b.go:3: "gizmo" is a retired word: say part`},
	{"words", map[string]string{"docs/gizmo.md": "x\n"}, `docs/gizmo.md: "gizmo" is a retired`},
	{"words", map[string]string{"docs/a.md": "The gizmo.\n"}, `docs/a.md:1: "gizmo" is a retired`},
	{"words", map[string]string{"tensor/b.go": "package tensor\n\nfunc (t *T) Beside() {}\n"},
		"tensor/b.go:3: Beside is a retired name: say extras"},
	{"words", map[string]string{"tensor/beside.go": "package tensor\n"},
		"tensor/beside.go: beside is a retired name: say extras"},
	{"words", map[string]string{"tensor/b.py": "def beside(x):\n"},
		"tensor/b.py:1: beside is a retired name: say extras"},

	{"goroutines", map[string]string{"tensor/b.go": "package tensor\n\nfunc F() { go F() }\n"},
		"tensor/b.go:3: a go statement outside internal/group"},
	{"goroutines", map[string]string{"tensor/b_test.go": "package tensor\n\nfunc f() { go f() }\n"},
		"tensor/b_test.go:3: a go statement"},
	{"goroutines", map[string]string{"tensor/b.go": "package tensor\n\nvar g sync.WaitGroup\n"},
		"tensor/b.go:3: a sync.WaitGroup outside"},
	{"sleep", map[string]string{
		"tensor/b_test.go": "package tensor\n\nfunc f() { time.Sleep(1) }\n"},
		"tensor/b_test.go:3: time.Sleep in a test"},

	{"leftovers", map[string]string{"tensor/b.go": "package tensor\n\n// TO" + "DO: later\n"},
		"tensor/b.go:3: TO" + "DO: do it now"},
	{"leftovers", map[string]string{"docs/a.md": "FIX" + "ME\n"}, "docs/a.md:1: FIX" + "ME"},
	{"pickle", map[string]string{"python/shoal/a.py": "import os\nimport pickle\n"},
		"python/shoal/a.py:2: \"import pickle\" can run code"},
	{"pickle", map[string]string{"examples/a.py": "state = torch.load(path)\n"},
		"examples/a.py:1: \"torch.load(\""},

	{"go-directive", map[string]string{"go.mod": "module m\n\ngo 1.27.0\n"},
		"go.mod: the go directive is not 1.26"},
	{"go-directive", map[string]string{
		"kernel/_asm/go.mod": "module m\n\ngo 1.26.0\n\nreplace a => b\n"},
		"kernel/_asm/go.mod:5: a replace line"},
	{"dependencies", map[string]string{
		"go.mod": "module m\n\ngo 1.26.0\n\nrequire example.org/other v1.0.0\n"},
		"no section about example.org/other"},
	{"dependencies", map[string]string{"go.mod": manyRequires(MaxDirectDependencies + 1)},
		"19 direct dependencies, the budget is 18"},
}

// importFile returns the text of a Go file that imports a package.
func importFile(pkg, path string) string {
	return fmt.Sprintf("package %s\n\nimport _ %q\n", pkg, path)
}

// walkPage returns an ARCHITECTURE.md with these steps of a walk.
func walkPage(steps string) map[string]string {
	return map[string]string{"ARCHITECTURE.md": "# A\n\n## W\n\n" + steps}
}

// manyRequires returns a go.mod with n direct dependencies.
func manyRequires(n int) string {
	text := "module m\n\ngo 1.26.0\n\nrequire (\n"
	for i := range n {
		text += fmt.Sprintf("\texample.org/m%d v1.0.0\n", i)
	}
	return text + ")\n"
}

// numberedFiles returns n files whose names are numbered. name has a verb for the number; the files
// are by their paths.
func numberedFiles(name string, n int) map[string]string {
	files := map[string]string{}
	for i := range n {
		files[fmt.Sprintf(name, i)] = "x = 1\n"
	}
	return files
}

// buildTree returns the small house with changes: files by their paths, where "" removes one. A
// failure ends the test.
func buildTree(t *testing.T, changes map[string]string) *Tree {
	t.Helper()
	fsys := fstest.MapFS{}
	for _, files := range []map[string]string{house, changes} {
		for p, text := range files {
			if text == "" {
				delete(fsys, p)
				continue
			}
			fsys[p] = &fstest.MapFile{Data: []byte(text)}
		}
	}
	tree, err := Load(fsys, slices.Collect(maps.Keys(fsys)))
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

// testRules returns the rules with the layers, the words and the number of walks of the small house
// in place of the real ones.
func testRules() []Rule {
	rs := slices.Clone(Rules)
	i := slices.IndexFunc(rs, func(r Rule) bool { return r.Name == "layers" })
	rs[i].Check = func(t *Tree) []Finding { return checkLayersText(t, houseLayers) }
	i = slices.IndexFunc(rs, func(r Rule) bool { return r.Name == "words" })
	rs[i].Check = func(t *Tree) []Finding { return checkWordsText(t, houseWords) }
	i = slices.IndexFunc(rs, func(r Rule) bool { return r.Name == "walks" })
	rs[i].Check = func(t *Tree) []Finding { return checkWalksText(t, houseLayers, 1) }
	return rs
}

// TestTidyHouse checks that no rule finds anything in the small house.
func TestTidyHouse(t *testing.T) {
	tree := buildTree(t, nil)
	for _, rule := range testRules() {
		for _, f := range rule.Check(tree) {
			t.Errorf("%s: %v", rule.Name, f)
		}
	}
}

// TestEveryRuleCanFail breaks each rule in the small house, and checks what is found.
func TestEveryRuleCanFail(t *testing.T) {
	shown := map[string]bool{}
	for i, b := range broken {
		shown[b.rule] = true
		t.Run(fmt.Sprintf("%s-%d", b.rule, i), func(t *testing.T) {
			i := slices.IndexFunc(testRules(), func(r Rule) bool { return r.Name == b.rule })
			if i < 0 {
				t.Fatalf("there is no rule %q", b.rule)
			}
			found := testRules()[i].Check(buildTree(t, b.files))
			if !slices.ContainsFunc(found, func(f Finding) bool {
				return strings.Contains(f.String(), b.want)
			}) {
				t.Errorf("found %v, want a finding with %q", found, b.want)
			}
		})
	}
	for _, r := range testRules() {
		if !shown[r.Name] {
			t.Errorf("no broken house for rule %q", r.Name)
		}
	}
}

// TestExempt shows what the rules pass over: generated files, test data, the goroutines of
// internal/group, and links that lead somewhere.
func TestExempt(t *testing.T) {
	long := strings.Repeat("\n", FileLines)
	wide := strings.Repeat("x ", Columns)
	tree := buildTree(t, map[string]string{
		"tensor/ztable.go": "package tensor\n" + long,
		"tensor/table.go": "// Code generated by gen. DO NOT EDIT.\n\npackage tensor\n" +
			long,
		"tensor/testdata/a.py": "import pickle\n" + long,
		"tensor/testdata/a.go": "package {\n",
		"tensor/testdata/a.pt": "a\x00b",
		".gitignore":           "/bin/\n",
		"internal/group/group.go": "// Package group runs.\npackage group\n\n// F goes.\n" +
			"func F() { go F() }\n",
		"docs/a.md": "[far](https://example.org/x) [here](#a) " +
			"[map](../ARCHITECTURE.md) [dir](../kernel/) `[x](y)`\n```\n[x](y)\n```\n",
		"tensor/b_test.go": "package tensor\n\nfunc F() {\n" +
			strings.Repeat("\n", FunctionLines) + "}\n\nvar s = `" + wide + "`\n",
		"docs/wide.md":       "| " + wide + "\n\n```\n" + wide + "\n```\n",
		"docs/address.md":    "See https://example.org/" + strings.Repeat("x", Columns) + "\n",
		"changelog/0.1.0.md": "A gizmo became a part.\n",
		"ARCHITECTURE.md": "## W\n\n1. `cmd/shoal` has `kernel`,\n   and `kernel/kernel.go` has " +
			"`tensor`.\n2. **Back**: `kernel` and `cmd/shoal`.\n3. `python/shoal/a.py`.\n\n" +
			"Beside it `tensor` has `kernel`.\n",
		"kernel/b.go": "package kernel\n\n// A Beside is here.\ntype Beside int\n\n" +
			"func (Beside) String() string { return \"\" }\n\ntype rest int\n\n" +
			"func (rest) F() {}\n",
	})
	for _, rule := range testRules() {
		if rule.Name == "layers" || rule.Name == "format" || rule.Name == "code-map" {
			continue
		}
		for _, f := range rule.Check(tree) {
			t.Errorf("%s: %v", rule.Name, f)
		}
	}
}

// TestLayersSyntax checks what is said of lines that are no lines of layers.txt.
func TestLayersSyntax(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"tensor", "layers.txt:1: \"tensor\" is neither"},
		{"NONE < a\na !< b", "layers.txt:2: a ban without a reason"},
		{"a < b", "a is used before the line that places it"},
		{"NONE < a\nNONE < a", "a stands on two lines"},
	} {
		if _, err := parseLayers(c.text); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("parseLayers(%q) = %v, want an error with %q", c.text, err, c.want)
		}
	}
}
