"""The closed lists of functions: what a query may call, and what it may not, with the reason and what to write.

Names are classes of Catalyst, as an analysed plan has them. A function that is in neither list is refused as unknown:
a new Spark brings new functions, and each has to be looked at before two honest nodes may disagree because of it.
Engine semantics, section 11.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Denial:
    """Why a function cannot be used, and what to write instead."""

    code: str
    reason: str
    instead: str


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_STRUCTURE: Final = _words("""
    Alias AttributeReference Literal Cast AggregateExpression SortOrder WindowExpression WindowSpecDefinition
    SpecifiedWindowFrame UnboundedPreceding$ UnboundedFollowing$ CurrentRow$ LambdaFunction NamedLambdaVariable
    KnownNullable KnownNotNull PreciseTimestampConversion OuterReference TempResolvedColumn Between With
    CommonExpressionRef CommonExpressionDef
""")
_LOGIC: Final = _words("""
    And Or Not EqualTo EqualNullSafe EqualNull GreaterThan GreaterThanOrEqual LessThan LessThanOrEqual In InSet
    IsNull IsNotNull IsNaN Like ILike LikeAll LikeAny NotLikeAll NotLikeAny RLike Contains StartsWith EndsWith
    CaseWhen If Coalesce NaNvl NullIf NullIfZero Nvl Nvl2 ZeroIfNull Greatest Least AtLeastNNonNulls
""")
_NUMBERS: Final = _words("""
    Add Subtract Multiply Divide IntegralDivide Remainder Pmod UnaryMinus UnaryPositive Abs Sign Signum
    TryAdd TrySubtract TryMultiply TryDivide TryMod TryEval Ceil Floor RoundCeil RoundFloor Round BRound Rint Sqrt
    Bin Conv Hex Unhex Factorial WidthBucket Pi EulerNumber Crc32 Md5 Sha1 Sha2 Murmur3Hash XxHash64 Hmac
    BitwiseAnd BitwiseOr BitwiseXor BitwiseNot BitwiseCount BitwiseGet ShiftLeft ShiftRight ShiftRightUnsigned
    CheckOverflow UnscaledValue MakeDecimal PromotePrecision CheckOverflowInSum
""")
TEXT_FUNCTIONS: Final = _words("""
    Ascii Base32 Base64 BitLength Chr Concat ConcatWs Decode Encode StringDecode Elt FindInSet FormatNumber
    FormatString InitCap IsValidUTF8 JaroWinkler Left Length Levenshtein Lower Luhncheck MakeValidUTF8 Mask
    OctetLength Overlay Quote RegExpCount RegExpExtract RegExpExtractAll RegExpInStr RegExpReplace RegExpSubStr
    Right SoundEx SplitPart StringInstr StringLocate StringLPad StringRPad StringRepeat StringReplace StringSpace
    StringSplit StringTranslate StringTrim StringTrimBoth StringTrimLeft StringTrimRight Substring SubstringIndex
    ToBinary ToCharacter ToNumber TryToBinary TryToNumber TryValidateUTF8 UnBase32 UnBase64 Upper ValidateUTF8
    ParseUrl TryParseUrl UrlDecode TryUrlDecode UrlEncode GetJsonObject JsonObjectKeys JsonToStructs
    LengthOfJsonArray StructsToJson CsvToStructs StructsToCsv BinaryPad
""")
_TIME: Final = _words("""
    AddMonths ConvertTimezone DateAdd DateAddInterval DateAddYMInterval DateDiff DateFormatClass DateFromUnixDate
    DatePart DateSub DatetimeSub DayName DayOfMonth DayOfWeek DayOfYear Extract FromUTCTimestamp FromUnixTime Hour
    LastDay MakeDTInterval MakeDate MakeTimestamp MakeTimestampNTZ MakeYMInterval MicrosToTimestamp
    MillisToTimestamp Minute Month MonthName MonthsBetween NextDay ParseToDate ParseToTimestamp Quarter Second
    SecondWithFraction SecondsToTimestamp SubtractDates SubtractTimestamps TimeBucket TimestampAdd
    TimestampAddInterval TimestampAddYMInterval TimestampDiff ToUTCTimestamp ToUnixTimestamp GetTimestamp
    TryMakeTimestamp TryToTimestamp TruncDate TruncTimestamp UnixDate UnixTimestamp UnixMicros UnixMillis UnixSeconds
    WeekDay WeekOfYear WindowTime Year YearOfWeek
    MultiplyDTInterval MultiplyYMInterval DivideDTInterval DivideYMInterval
    ExtractANSIIntervalDays ExtractANSIIntervalHours ExtractANSIIntervalMinutes ExtractANSIIntervalSeconds
    ExtractANSIIntervalMonths ExtractANSIIntervalYears
""")
_COLLECTIONS: Final = _words("""
    ArrayAggregate ArrayAppend ArrayCompact ArrayContains ArrayDistinct ArrayExcept ArrayExists ArrayFilter
    ArrayForAll ArrayInsert ArrayIntersect ArrayJoin ArrayMax ArrayMin ArrayPosition ArrayPrepend ArrayRemove
    ArrayRepeat ArraySize ArraySort ArrayTransform ArrayUnion ArraysOverlap ArraysZip CreateArray CreateMap
    CreateNamedStruct ElementAt Explode Flatten Get GetArrayItem GetArrayStructFields GetMapValue GetStructField
    Inline MapConcat MapContainsKey MapEntries MapFilter MapFromArrays MapFromEntries MapKeys MapValues MapZipWith
    PosExplode Reverse Sequence Size Slice SortArray Stack StringToMap TransformKeys TransformValues TryElementAt
    UpdateFields WithField ZipWith GeneratorOuter
""")
_AGGREGATES: Final = _words("""
    Average BitAndAgg BitOrAgg BitXorAgg BoolAnd BoolOr Corr Count CountIf CovPopulation CovSample
    HyperLogLogPlusPlus Kurtosis Max Median Min Percentile PercentileCont PercentileDisc RegrAvgX RegrAvgY RegrCount
    RegrIntercept RegrR2 RegrReplacement RegrSXX RegrSXY RegrSYY RegrSlope Skewness StddevPop StddevSamp Sum TrySum
    TryAverage VariancePop VarianceSamp NumericHistogram
    RowNumber Rank DenseRank PercentRank CumeDist NTile Lag Lead PivotFirst
""")
ALLOWED: Final = _STRUCTURE | _LOGIC | _NUMBERS | TEXT_FUNCTIONS | _TIME | _COLLECTIONS | _AGGREGATES

_CLOCK = Denial("not-data", "its value is not in the data", "use a column, such as event_time")
_LAYOUT = Denial("layout-dependent", "it depends on how rows are spread over machines", "use hash() of columns")
_TIES = Denial("arbitrary-row", "which row it takes is not determined", "min(x), or max(struct(y, x)).x")
_ORDER = Denial(
    "arbitrary-order",
    "the order of its elements is not determined",
    "use array_sort(collect_list(x)), x cast to a decimal if it is floating point",
)
_LISTED = Denial(
    "arbitrary-order", "the order of its elements is not determined", "use listagg(x, ',') within group (order by x)"
)
_MERGE = Denial("layout-dependent", "its answer depends on the order of merging", "use percentile or count")
_CODE = Denial("opaque-function", "what it does cannot be known", "use functions of SQL")
_CPU = Denial("platform-dependent", "its last digits depend on the processor", "compute it where it is displayed")
_TABLES = Denial(
    "collation", "which texts it takes for equal is arbitrary, and changes with its tables", "use lower(x)"
)
_PLACE = Denial("not-data", "it depends on the configuration of the engine", "write the value itself")

DENIED: Final[dict[str, Denial]] = {
    name: denial
    for names, denial in (
        ("CurrentTimestamp Now LocalTimestamp CurrentDate CurrentTime CurrentTimestampLike", _CLOCK),
        ("CurrentTimeZone CurrentUser CurrentDatabase CurrentCatalog CurrentPath SparkVersion TypeOf", _PLACE),
        ("Rand Randn Uuid Shuffle RandStr Uniform MonotonicallyIncreasingID SparkPartitionID", _LAYOUT),
        ("InputFileName InputFileBlockStart InputFileBlockLength FileSourceMetadataAttribute", _LAYOUT),
        ("First Last AnyValue Mode MaxBy MinBy NthValue", _TIES),
        ("CollectList CollectSet CollectUnion", _ORDER),
        ("ListAgg", _LISTED),
        ("Collate Collation", _TABLES),
        ("ApproximatePercentile HistogramNumeric ApproxTopK CountMinSketchAgg", _MERGE),
        ("ScalaUDF PythonUDF PythonUDAF PythonUDTF ScalaUDAF ScalaAggregator HiveSimpleUDF HiveGenericUDF", _CODE),
        ("CallMethodViaReflection TryReflect StaticInvoke Invoke", _CODE),
        ("Sin Cos Tan Asin Acos Atan Atan2 Sinh Cosh Tanh Asinh Acosh Atanh Cot Csc Sec", _CPU),
        ("Exp Expm1 Log Log10 Log1p Log2 Logarithm Pow Cbrt Hypot ToDegrees ToRadians", _CPU),
    )
    for name in names.split()
}

ORDER_FREE: Final = _words("""
    Count CountIf HyperLogLogPlusPlus BoolAnd BoolOr BitAndAgg BitOrAgg BitXorAgg RegrCount
    Percentile PercentileCont PercentileDisc Median PivotFirst
""")
"""Aggregates that give the same for floating point inputs in any order."""
INTEGER_IN_DOUBLE: Final = _words("Average TryAverage")
"""Aggregates that add whole numbers in floating point, inexact beyond 2^53."""
ADDS_IN_DOUBLE: Final = {
    **dict.fromkeys(("VariancePop", "VarianceSamp", "StddevPop", "StddevSamp"), "sum(x * x), sum(x) and count(x)"),
    **dict.fromkeys(("Skewness", "Kurtosis"), "sum(x * x * x), sum(x * x), sum(x) and count(x)"),
    **dict.fromkeys(
        ("Corr", "CovPopulation", "CovSample", "RegrSlope", "RegrIntercept", "RegrR2", "RegrSXX", "RegrSYY", "RegrSXY",
         "RegrReplacement"),
        "sum(x * y), sum(x), sum(y) and count(x)",
    ),
}  # fmt: skip
"""Aggregates that turn whatever they are given into floating point first, and the exact ones they come from."""
BY_ORDER: Final = _words("First Last NthValue")
"""Allowed in OVER, where ORDER BY can decide which row they take."""
MAKES_MAP: Final = _words("""
    CreateMap MapConcat MapFilter MapFromArrays MapFromEntries MapZipWith StringToMap TransformKeys TransformValues
""")
HOLDS_ITS_ARGUMENTS: Final = _words("""
    Alias CreateArray CreateNamedStruct CaseWhen If Coalesce Nvl Nvl2 NullIf KnownNullable KnownNotNull ArrayRepeat
""")
"""Functions whose value is one of their arguments, or made of them."""
MAKES_FLOAT: Final = _words("""
    MonthsBetween Pi EulerNumber Percentile PercentileCont Median Average TryAverage JsonToStructs CsvToStructs
    JaroWinkler PercentRank CumeDist
""")
"""Functions whose result is floating point (or may hold it) though no argument is."""
NEVER_FLOAT: Final = _words("""
    And Or Not EqualTo EqualNullSafe GreaterThan GreaterThanOrEqual LessThan LessThanOrEqual In InSet IsNull IsNotNull
    IsNaN Like ILike RLike Contains StartsWith EndsWith Length OctetLength Murmur3Hash XxHash64 Ceil Floor RoundCeil
    RoundFloor Count CountIf Size ArraySize ArrayContains Hex DateFormatClass FormatNumber FormatString
""")
"""Functions whose result is not floating point though an argument may be."""
NOT_TEXT: Final = (_NUMBERS | _TIME) - _words("DateFormatClass DayName MonthName FromUnixTime")
"""Functions whose result is never a text that could be read as a time of day."""
NESTED: Final = _COLLECTIONS - _words("""
    ArrayContains ArrayExists ArrayForAll ArrayJoin ArrayPosition ArraySize ArraysOverlap ElementAt Get GetArrayItem
    GetMapValue GetStructField MapContainsKey Size TryElementAt ArrayMax ArrayMin ArrayAggregate Reverse Explode
    PosExplode Inline Stack GeneratorOuter
""")
"""Functions whose result is a list, a structure or a map."""
BYTES: Final = _words("Unhex UnBase64 UnBase32 Encode ToBinary TryToBinary")
"""Functions whose result is binary."""
SUBQUERIES: Final = _words("ScalarSubquery Exists ListQuery InSubquery LateralSubquery FunctionTableSubqueryArgument")
