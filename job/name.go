package job

import (
	"path/filepath"
	"strings"
)

// nameFor makes a job name from a command: the script, where there is one behind an interpreter,
// else the program.
func nameFor(command []string) string {
	if len(command) == 0 {
		return "job"
	}
	word := command[0]
	for _, arg := range command[1:] {
		if script(arg) {
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

func script(arg string) bool {
	if strings.HasPrefix(arg, "-") {
		return false
	}
	ext := filepath.Ext(arg)
	return ext == ".py" || ext == ".sh"
}

func nameRune(r rune) rune {
	if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
		return r
	}
	return '-'
}
