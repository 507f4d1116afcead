package job

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/shoal-ml/shoal/internal/pattern"
)

// What a spec says of Python: the command that runs it, and the modules of prefork. Nothing here
// does I/O.

// pythonProgram matches the name of an interpreter, and pythonModule that of a module.
var (
	pythonProgram = pattern.New(`^python[0-9.]*$`)
	pythonModule  = pattern.New(`^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$`)
)

// SplitPython splits a command that runs a script or a module of Python, and tells whether it is
// such a command. options are the words before the script or -m, the interpreter among them; words
// are the others. Both are parts of command, and say nothing where it is another command.
func SplitPython(command []string) (options, words []string, is bool) {
	if len(command) == 0 || !pythonProgram.MatchString(filepath.Base(command[0])) {
		return nil, nil, false
	}
	for i := 1; i < len(command); i++ {
		word := command[i]
		switch letter := strings.IndexAny(word, "cmWX"); {
		case word == "--check-hash-based-pycs":
			i++ // its value is a word of its own
		case word == "-m":
			return command[:i], command[i:], i+1 < len(command)
		case !strings.HasPrefix(word, "-"):
			return command[:i], command[i:], true
		case word == "-":
			return nil, nil, false
		case strings.HasPrefix(word, "--") || letter < 0:
		case word[letter] == 'c' || word[letter] == 'm': // with the program, after other letters
			return nil, nil, false
		case letter == len(word)-1:
			i++ // the value of -W or -X
		}
	}
	return nil, nil, false
}

// checkPrefork returns the Error of modules that no process can import for the workers of a
// command; nil if one can.
func checkPrefork(modules, command []string) error {
	if len(modules) == 0 {
		return nil
	}
	i := slices.IndexFunc(modules, func(m string) bool { return !pythonModule.MatchString(m) })
	if i >= 0 {
		return &Error{"prefork", fmt.Sprintf("%q is not the name of a Python module; write what "+
			"the script imports, as torch,transformers", modules[i])}
	}
	if _, _, is := SplitPython(command); !is {
		return &Error{"prefork", fmt.Sprintf("modules are imported for a script or a module of "+
			"Python, and the command is %s; write python3 [options] train.py, or python3 -m train",
			strings.Join(command, " "))}
	}
	return nil
}
