package job

import (
	"path/filepath"
	"strings"
)

// Names of jobs that have none in their spec. The functions are pure.

// NameFor returns a job name for a command: that of the script, where there is one after an
// interpreter, else that of the program. So ddp_shoal.py, and ddp_shoal alone, become "ddp-shoal".
func NameFor(command []string) string {
	if len(command) == 0 {
		return "job"
	}
	word := command[0]
	for _, arg := range command[1:] {
		if isScript(arg) {
			word = arg
			break
		}
	}
	word = filepath.Base(word)
	word = strings.TrimSuffix(word, filepath.Ext(word))
	name := strings.Trim(strings.Map(nameRune, strings.ToLower(word)), "-")
	if len(name) > maxName {
		name = strings.TrimRight(name[:maxName], "-")
	}
	if name == "" {
		return "job"
	}
	return name
}

// isScript reports whether an argument looks like the script of an interpreter.
func isScript(arg string) bool {
	if strings.HasPrefix(arg, "-") {
		return false
	}
	ext := filepath.Ext(arg)
	return ext == ".py" || ext == ".sh"
}

// nameRune returns a rune as it may stand in a job name: any other one becomes a dash.
func nameRune(r rune) rune {
	if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
		return r
	}
	return '-'
}
