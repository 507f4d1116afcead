package trace

// Dates, as traces write them. The zone is not known, and only differences are used.

// parseDate returns the milliseconds from 1970 to a date such as "2017-10-09 07:01:55", with a
// space or a T in the middle, or the rule that it breaks.
func parseDate(text string) (int64, Rule) {
	const form = "0000-00-00 00:00:00"
	if len(text) != len(form) {
		return 0, NoNumber
	}
	var fields [6]int64
	field := 0
	for i := range len(form) {
		c := text[i]
		switch {
		case form[i] == '0' && c >= '0' && c <= '9':
			fields[field] = 10*fields[field] + int64(c-'0')
		case form[i] != '0' && (c == form[i] || i == 10 && c == 'T'):
			field++
		default:
			return 0, NoNumber
		}
	}
	year, month, day := fields[0], fields[1], fields[2]
	if year < 1970 || month < 1 || month > 12 || day < 1 || day > daysOf(year, month) ||
		fields[3] > 23 || fields[4] > 59 || fields[5] > 60 {
		return 0, NoNumber
	}
	days := day - 1
	for m := range month - 1 {
		days += daysOf(year, m+1)
	}
	before := year - 1
	days += 365*(year-1970) + (before/4 - before/100 + before/400) - (1969/4 - 1969/100 + 1969/400)
	return (((days*24+fields[3])*60+fields[4])*60 + fields[5]) * 1e3, ""
}

// daysOf returns the number of days of a month, which is from 1 to 12, of the Gregorian calendar.
func daysOf(year, month int64) int64 {
	switch {
	case month == 2 && (year%4 == 0 && year%100 != 0 || year%400 == 0):
		return 29
	case month == 2:
		return 28
	case month == 4 || month == 6 || month == 9 || month == 11:
		return 30
	}
	return 31
}
